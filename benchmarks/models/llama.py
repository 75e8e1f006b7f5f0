"""Llama: RMSNorm, rotary positions, grouped-query attention and SwiGLU.

Touvron et al., LLaMA, 2023; the two largest sizes have the dimensions of Llama 3.2 1B and 3.1 8B (Grattafiori et al.,
The Llama 3 Herd of Models, 2024), without the frequency scaling that stretched their context after training.

The residual stream stays fp32 in every precision: only what stands between a norm and the sum that follows computes
in the precision's dtype. Shapes: (rows, sequence, hidden) unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contract import Plan
from benchmarks.errors import UsageError
from benchmarks.models._shapes import parameter_shapes
from benchmarks.models._text import TextModel


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """One size of the family; `configs/models/llama.yaml` says what each means."""

    blocks: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    context: int
    theta: float
    tied: bool
    epsilon: float

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, then scales (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        # Fully sharded mixed precision gathers the weight in 16 bit while the stream is fp32.
        return F.rms_norm(x, (x.size(-1),), self.weight.to(x.dtype), self.epsilon)


@lru_cache(maxsize=8)
def rotary_table(sequence: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x frequency, each (sequence, head_dim / 2), fp32.

    Made once for all blocks. It is no buffer of a module, so that no strategy has to move, cast or shard it.
    """
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.arange(sequence, dtype=torch.float32, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, theta: float) -> Tensor:
    """Turn each pair (x[i], x[i + head_dim / 2]) by its position times its frequency (Su et al., RoFormer, 2021).

    The scalar product of a turned query and a turned key then depends on their distance alone. Computes in fp32.

    Args:
        x: (rows, heads, sequence, head_dim).
    """
    # A table made while a graph is traced belongs to the trace: kept, it would be found by what runs later.
    table = rotary_table.__wrapped__ if torch.compiler.is_exporting() else rotary_table
    cos, sin = table(x.size(-2), x.size(-1), theta, x.device)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal attention in which several query heads share one key and value head (Ainslie et al., GQA, 2023)."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.head_dim, self.theta = d.head_dim, d.theta
        self.query = nn.Linear(d.hidden, d.heads * d.head_dim, bias=False)
        self.key = nn.Linear(d.hidden, d.kv_heads * d.head_dim, bias=False)
        self.value = nn.Linear(d.hidden, d.kv_heads * d.head_dim, bias=False)
        self.output = nn.Linear(d.heads * d.head_dim, d.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        query, key = rotate(query, self.theta), rotate(key, self.theta)
        # Keys and values are repeated in memory: not every kernel behind the call takes fewer of them than queries.
        sharing = query.size(1) // key.size(1)
        key, value = key.repeat_interleave(sharing, dim=1), value.repeat_interleave(sharing, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(rows, sequence, heads x head_dim) -> (rows, heads, sequence, head_dim).

        The number of heads is left open: a tensor parallel rank has only its share of them.
        """
        return x.view(x.size(0), x.size(1), -1, self.head_dim).transpose(1, 2)


class SwiGLU(nn.Module):
    """A gated feed-forward network (Shazeer, GLU Variants Improve Transformer, 2020)."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.gate = nn.Linear(d.hidden, d.mlp, bias=False)
        self.up = nn.Linear(d.hidden, d.mlp, bias=False)
        self.down = nn.Linear(d.mlp, d.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One transformer block with norms before its two halves."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.attention_norm = RMSNorm(d.hidden, d.epsilon)
        self.attention = Attention(d)
        self.mlp_norm = RMSNorm(d.hidden, d.epsilon)
        self.mlp = SwiGLU(d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nn.Module):
    """(rows, sequence) tokens in, the residual stream out."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.token = nn.Embedding(d.vocabulary, d.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens).float()


class Head(nn.Module):
    """The residual stream in, logits (rows, sequence, vocabulary) out."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.norm = RMSNorm(d.hidden, d.epsilon)
        self.linear = nn.Linear(d.hidden, d.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


class Model(TextModel):
    """What strategies must know of Llama."""

    tensor_plan = (
        Plan("embedding.token", "vocabulary"),
        Plan("block*.attention", "region"),
        Plan("block*.attention.query", "column"),
        Plan("block*.attention.key", "column"),
        Plan("block*.attention.value", "column"),
        Plan("block*.attention.output", "row"),
        Plan("block*.mlp", "region"),
        Plan("block*.mlp.gate", "column"),
        Plan("block*.mlp.up", "column"),
        Plan("block*.mlp.down", "row"),
        Plan("head.linear", "head"),
    )

    def __init__(self, name: str, dimensions: Mapping[str, bool | int | float]):
        """Raises `UsageError` where the dimensions do not fit together."""
        self.name, self.dimensions = name, Dimensions(**dimensions)
        d = self.dimensions
        if d.hidden % (2 * d.heads):
            raise UsageError(f"model {name!r} has hidden={d.hidden}, heads={d.heads}: hidden must be a multiple of twice heads")
        if d.heads % d.kv_heads:
            raise UsageError(f"model {name!r} has heads={d.heads} and kv_heads={d.kv_heads}: kv_heads must divide heads")
        self.blocks = tuple(f"block{i}" for i in range(d.blocks))
        self.units = ("embedding", *self.blocks, "head")
        self.tied = {"head.linear.weight": "embedding.token.weight"} if d.tied else {}

    def build(self, unit: str) -> nn.Module:
        kind = {"embedding": Embedding, "head": Head}.get(unit, Block)
        return kind(self.dimensions)

    def initial(self, name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if len(shape) == 1:  # only norms have vectors
            return torch.ones(shape)
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
        projections = d.hidden * d.head_dim * (2 * d.heads + 2 * d.kv_heads)
        pairs = sequence * (sequence + 1) // 2 if causal else sequence * sequence
        scores_and_mixing = 2 * rows * d.heads * pairs * d.head_dim
        return 2 * (tokens * (projections + 3 * d.hidden * d.mlp) + scores_and_mixing)

    def tensor_problem(self, degree: int) -> str | None:
        d = self.dimensions
        for what, size in (("heads", d.heads), ("kv_heads", d.kv_heads), ("mlp", d.mlp)):
            if size % degree:
                return f"{self.name} has {what}={size}, which tensor parallelism of degree {degree} does not divide"
        return None

    @property
    def longest_sequence(self) -> int:
        return self.dimensions.context

    @cached_property
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(self)
