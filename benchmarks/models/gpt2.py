"""GPT-2: learned positions, LayerNorm, GELU, biases everywhere, and an output layer that is the token embedding.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019. Query, key and value are three Linears where
the original fuses them: the same numbers, and each can be cut by heads. Dropout is 0.

The residual stream stays fp32 in every precision: only what stands between a norm and the sum that follows computes
in the precision's dtype. Shapes: (rows, sequence, hidden) unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contract import Plan
from benchmarks.errors import UsageError
from benchmarks.models._shapes import parameter_shapes
from benchmarks.models._text import TextModel


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """One size of the family; `configs/models/gpt2.yaml` says what each means."""

    blocks: int
    hidden: int
    heads: int
    mlp: int
    vocabulary: int
    context: int
    epsilon: float

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


class LayerNorm(nn.Module):
    """Shifts to mean 0, divides by the standard deviation, then scales and shifts (Ba et al., 2016)."""

    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        # Fully sharded mixed precision gathers the parameters in 16 bit while the stream is fp32.
        return F.layer_norm(x, (x.size(-1),), self.weight.to(x.dtype), self.bias.to(x.dtype), self.epsilon)


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.head_dim = d.head_dim
        self.query = nn.Linear(d.hidden, d.hidden)
        self.key = nn.Linear(d.hidden, d.hidden)
        self.value = nn.Linear(d.hidden, d.hidden)
        self.output = nn.Linear(d.hidden, d.hidden)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(rows, sequence, heads x head_dim) -> (rows, heads, sequence, head_dim).

        The number of heads is left open: a tensor parallel rank has only its share of them.
        """
        return x.view(x.size(0), x.size(1), -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """Two Linears with the tanh form of GELU (Hendrycks and Gimpel, 2016) between them."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.up = nn.Linear(d.hidden, d.mlp)
        self.down = nn.Linear(d.mlp, d.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """One transformer block with norms before its two halves."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.attention_norm = LayerNorm(d.hidden, d.epsilon)
        self.attention = Attention(d)
        self.mlp_norm = LayerNorm(d.hidden, d.epsilon)
        self.mlp = FeedForward(d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nn.Module):
    """(rows, sequence) tokens in, the residual stream out: what a token is plus where it stands."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.token = nn.Embedding(d.vocabulary, d.hidden)
        self.position = nn.Embedding(d.context, d.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        return self.token(tokens).float() + self.position(positions).float()


class Head(nn.Module):
    """The residual stream in, logits (rows, sequence, vocabulary) out. Its weight is the token embedding's."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.norm = LayerNorm(d.hidden, d.epsilon)
        self.linear = nn.Linear(d.hidden, d.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


class Model(TextModel):
    """What strategies must know of GPT-2."""

    tensor_plan = (
        Plan("embedding.token", "vocabulary"),
        Plan("embedding.position", "lookup"),
        Plan("block*.*_norm", "sequence"),
        Plan("block*.attention", "region"),
        Plan("block*.attention.query", "column"),
        Plan("block*.attention.key", "column"),
        Plan("block*.attention.value", "column"),
        Plan("block*.attention.output", "row"),
        Plan("block*.mlp", "region"),
        Plan("block*.mlp.up", "column"),
        Plan("block*.mlp.down", "row"),
        Plan("head.norm", "sequence"),
        Plan("head.linear", "head"),
    )
    tied = {"head.linear.weight": "embedding.token.weight"}

    def __init__(self, name: str, dimensions: Mapping[str, bool | int | float]):
        """Raises `UsageError` where the dimensions do not fit together."""
        self.name, self.dimensions = name, Dimensions(**dimensions)
        d = self.dimensions
        if d.hidden % d.heads:
            raise UsageError(f"model {name!r} has hidden={d.hidden} and heads={d.heads}: heads must divide hidden")
        self.blocks = tuple(f"block{i}" for i in range(d.blocks))
        self.units = ("embedding", *self.blocks, "head")

    def build(self, unit: str) -> nn.Module:
        kind = {"embedding": Embedding, "head": Head}.get(unit, Block)
        return kind(self.dimensions)

    def initial(self, name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if len(shape) == 1:
            return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        # GPT-2's 0.02 at its width of 768; other widths start with products of the same size.
        deviation = 0.02 * (768 / self.dimensions.hidden) ** 0.5
        if name.endswith(("attention.output.weight", "mlp.down.weight")):
            # So many products add up in the residual stream.
            deviation /= (2 * self.dimensions.blocks) ** 0.5
        return torch.empty(shape).normal_(0.0, deviation, generator=generator)

    def boundary(self, unit: str, rows: int, sequence: int) -> tuple[int, ...]:
        return (rows, sequence, self.dimensions.vocabulary if unit == "head" else self.dimensions.hidden)

    def forward_flops(self, unit: str, rows: int, sequence: int, *, causal: bool) -> int:
        d, tokens = self.dimensions, rows * sequence
        if unit == "embedding":
            return 0  # a lookup multiplies nothing
        if unit == "head":
            return 2 * tokens * d.hidden * d.vocabulary
        pairs = sequence * (sequence + 1) // 2 if causal else sequence * sequence
        scores_and_mixing = 2 * rows * pairs * d.hidden
        return 2 * (tokens * (4 * d.hidden * d.hidden + 2 * d.hidden * d.mlp) + scores_and_mixing)

    def tensor_problem(self, degree: int) -> str | None:
        d = self.dimensions
        for what, size in (("heads", d.heads), ("mlp", d.mlp)):
            if size % degree:
                return f"{self.name} has {what}={size}, which tensor parallelism of degree {degree} does not divide"
        return None

    @property
    def longest_sequence(self) -> int:
        return self.dimensions.context

    @cached_property
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(self)
