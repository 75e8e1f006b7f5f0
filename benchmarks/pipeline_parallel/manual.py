"""Hand-written model parallelism between processes: each rank holds a stage and talks to its neighbours.

For every microbatch a rank receives its input, runs forward, sends the output on; then it receives the gradient of that
output, runs backward from it and sends the gradient of its input back. One stage works at a time: of N stages each idles
(N - 1) / N of the step whatever the number of microbatches, which is the baseline that pipeline schedules improve on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.cell import Cell
from benchmarks.contract import Assembly, Batch, Replica
from benchmarks.pipeline_parallel._stages import SpreadStages
from benchmarks.stages import spread
from benchmarks.world import World


class SendReceive:
    """Forward down the stages and backward up again, one microbatch at a time."""

    def __init__(self, assembly: Assembly, replica: Replica, cell: Cell, world: World, input_shape: tuple[int, ...]):
        (stage,) = assembly.parts
        self._loss, self._replica = assembly.loss, replica
        self._microbatches = cell.batch.microbatches
        self._input_shape, self._device = input_shape, world.device
        self._previous = world.peer("pp", stage.index - 1) if stage.index > 0 else None
        self._next = world.peer("pp", stage.index + 1) if stage.index < stage.count - 1 else None
        self._group = world.group("pp")

    def run(self, batch: Batch) -> Tensor | None:
        """All microbatches of one step. Returns the mean loss on the last stage, None elsewhere."""
        (module,) = self._replica.modules
        count = self._microbatches
        losses = []
        for i, (inputs, targets) in enumerate(zip(batch.inputs.chunk(count), batch.targets.chunk(count), strict=True)):
            if self._previous is not None:
                inputs = torch.empty(self._input_shape, device=self._device)
                dist.recv(inputs, self._previous, group=self._group)
                inputs.requires_grad_()
            output = module(inputs)
            if self._next is not None:
                dist.send(output.detach().contiguous(), self._next, group=self._group)
                gradient = torch.empty_like(output)
                dist.recv(gradient, self._next, group=self._group)
            else:
                loss = self._loss(output, targets) / count
                losses.append(loss.detach())
                output, gradient = self._replica.scale(loss), None
            self._replica.backward(0, lambda: output.backward(gradient), kind="full", last=i == count - 1)  # noqa: B023
            if self._previous is not None:
                dist.send(inputs.grad, self._previous, group=self._group)
        return torch.stack(losses).sum() if losses else None


@dataclass(frozen=True)
class Strategy(SpreadStages):
    """No knobs."""

    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> SendReceive:
        stages = spread(self, assembly.model, cell)
        before = stages[world.coordinate("pp") - 1][-1]  # not used on the first stage, whose input is the batch
        shape = assembly.model.boundary(before, cell.rows_per_microbatch(), cell.batch.sequence)
        return SendReceive(assembly, replica, cell, world, shape)
