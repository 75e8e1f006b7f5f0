"""What models of text share: a sample is a row of bytes, and the target of each is the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import contract
from benchmarks.cell import Cell
from benchmarks.data import Text


@dataclass(frozen=True)
class Rows:
    """A text, cut into samples."""

    text: Text
    sequence: int
    vocabulary: int

    def batch(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (rows, sequence)."""
        return self.text.batch(step, rows, self.sequence, self.vocabulary)

    def describe(self) -> dict[str, str | int]:
        """`source`, `sha256`, `bytes` of the text."""
        return self.text.describe()


class TextModel(contract.Model):
    """A model whose last unit's output is (rows, sequence, vocabulary)."""

    def samples(self, cell: Cell) -> Rows:
        return Rows(Text(cell.data, cell.seed), cell.batch.sequence, self.boundary(self.units[-1], 1, 1)[-1])

    def example(self, rows: int, sequence: int) -> Tensor:
        return torch.empty(rows, sequence, dtype=torch.int64, device="meta")

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.float().flatten(0, 1), target.flatten())
