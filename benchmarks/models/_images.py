"""What models of images share: labels as targets, and a first layer whose input needs no gradient."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from benchmarks import contract


class ImageModel(contract.Model):
    """A model whose last unit's output is (rows, classes), and whose first unit has one matrix product."""

    tied: dict[str, str] = {}

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.float(), target)

    def training_flops(self, rows: int, sequence: int, *, causal: bool = True) -> int:
        # Nothing before the first product is trained, so of its two gradients only the weight's is computed.
        first = self.forward_flops(self.units[0], rows, sequence, causal=causal)
        return super().training_flops(rows, sequence, causal=causal) - first

    @property
    def longest_sequence(self) -> None:
        return None
