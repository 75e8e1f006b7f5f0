"""Pairs of Linears and nothing else: a narrow one up, a wide one down, stacked as often as one likes.

The plainest model there is: every FLOP is a product with a weight, and no norm, attention or embedding gets in a strategy's
way. Stacked deep, its layers are what pipelines and data parallelism cut; made wide, a single layer is the problem, which
only a strategy that cuts layers solves. It learns to tell handwritten digits apart.

Each pair adds to a stream that stays fp32 in every precision, so that any number of them can be trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import Plan
from benchmarks.errors import UsageError
from benchmarks.images import CLASSES, SIDE, Digits
from benchmarks.models._images import ImageModel
from benchmarks.models._shapes import parameter_shapes


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """One size of the family; `configs/models/mlp.yaml` says what each means."""

    blocks: int
    hidden: int
    mlp: int
    classes: int


class Input(nn.Module):
    """Flat images (rows, 64) in, the stream (rows, hidden) out."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.linear = nn.Linear(SIDE * SIDE, d.hidden)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images).float()


class Pair(nn.Module):
    """Two Linears with the tanh form of GELU (Hendrycks and Gimpel, 2016) between them."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.up = nn.Linear(d.hidden, d.mlp)
        self.down = nn.Linear(d.mlp, d.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """What a pair finds is added to its input."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.pair = Pair(d)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pair(x)


class Head(nn.Module):
    """The stream in, logits (rows, classes) out."""

    def __init__(self, d: Dimensions):
        super().__init__()
        self.linear = nn.Linear(d.hidden, d.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Model(ImageModel):
    """What strategies must know of the stack."""

    tensor_plan = (
        Plan("block*.pair", "region"),
        Plan("block*.pair.up", "column"),
        Plan("block*.pair.down", "row"),
        Plan("head.linear", "head"),
    )

    def __init__(self, name: str, dimensions: Mapping[str, bool | int | float]):
        """Raises `UsageError` where the dimensions do not fit together."""
        self.name, self.dimensions = name, Dimensions(**dimensions)
        if self.dimensions.classes < CLASSES:
            raise UsageError(f"model {name!r} has classes={self.dimensions.classes}: the images have {CLASSES}, give as many")
        self.blocks = tuple(f"block{i}" for i in range(self.dimensions.blocks))
        self.units = ("input", *self.blocks, "head")

    def samples(self, cell: Cell) -> Digits:
        return Digits(cell.seed)

    def example(self, rows: int, sequence: int) -> Tensor:
        return torch.empty(rows, SIDE * SIDE, device="meta")

    def build(self, unit: str) -> nn.Module:
        kind = {"input": Input, "head": Head}.get(unit, Block)
        return kind(self.dimensions)

    def initial(self, name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if len(shape) == 1:
            return torch.zeros(shape)
        deviation = shape[1] ** -0.5
        if name.endswith("pair.down.weight"):
            deviation /= self.dimensions.blocks**0.5  # so many pairs add up in the stream
        return torch.empty(shape).normal_(0.0, deviation, generator=generator)

    def boundary(self, unit: str, rows: int, sequence: int) -> tuple[int, ...]:
        return (rows, self.dimensions.classes if unit == "head" else self.dimensions.hidden)

    def forward_flops(self, unit: str, rows: int, sequence: int, *, causal: bool) -> int:
        d = self.dimensions
        outer = {"input": SIDE * SIDE, "head": d.classes}.get(unit, 2 * d.mlp)
        return 2 * rows * d.hidden * outer

    def tensor_problem(self, degree: int) -> str | None:
        if self.dimensions.mlp % degree:
            return f"{self.name} has mlp={self.dimensions.mlp}, which tensor parallelism of degree {degree} does not divide"
        return None

    @cached_property
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(self)
