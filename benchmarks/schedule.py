"""Gradient accumulation: the schedule of a model that this process holds whole."""

from __future__ import annotations

from torch import Tensor

from benchmarks.contract import Assembly, Batch, Replica


class Accumulate:
    """Forward and backward of one microbatch after the other.

    The mean over a batch is the mean over its m equal microbatches, so each loss is divided by m and gradients add up.
    """

    def __init__(self, assembly: Assembly, replica: Replica, microbatches: int):
        self._loss, self._replica, self._microbatches = assembly.loss, replica, microbatches

    def run(self, batch: Batch) -> Tensor:
        """All microbatches of one step. Returns the mean loss, a scalar."""
        (module,) = self._replica.modules
        count = self._microbatches
        total = None
        for i, (inputs, targets) in enumerate(zip(batch.inputs.chunk(count), batch.targets.chunk(count), strict=True)):
            output = module(inputs)
            loss = self._loss(output, targets.to(output.device)) / count
            scaled = self._replica.scale(loss)
            self._replica.backward(0, scaled.backward, kind="full", last=i == count - 1)
            total = loss.detach() if total is None else total + loss.detach()
        return total
