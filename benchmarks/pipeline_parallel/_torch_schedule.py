"""What the schedules of torch.distributed.pipelining (PiPPy's successor) need to serve any data strategy.

torch's stage calls autograd itself and knows DDP and FSDP modules by type. Here a stage wraps a plain shell module, and its
one backward method hands every backward to the `Replica`, which alone knows how its gradients are reduced. The 1/m of the
mean stands inside the loss, so the schedule scales nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from benchmarks.cell import Cell
from benchmarks.contract import SEVERAL_IN_FLIGHT, Assembly, Batch, Model, Replica
from benchmarks.pipeline_parallel._stages import StageOfEachProcess, stages
from benchmarks.world import World


class _Shell(nn.Module):
    """Hides the type of the module it calls."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


class _Stage(PipelineStage):
    """A stage whose backward is run by a replica."""

    replica: Replica

    def backward_maybe_with_nosync(self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False) -> Any:
        def run() -> Any:
            return super(_Stage, self).backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)

        return self.replica.backward(0, run, kind=backward_type, last=last_backward)


class TorchSchedule:
    """One of torch's schedules with one stage on each rank."""

    def __init__(self, kind: type[PipelineScheduleSingle], assembly: Assembly, replica: Replica, cell: Cell, world: World):
        (mine,) = assembly.parts
        self._losses: list[Tensor] = []
        self._first, self._last = mine.index == 0, mine.index == mine.count - 1
        stage = _Stage(
            _Shell(replica.modules[0]),
            mine.index,
            mine.count,
            world.device,
            **_shapes(assembly, cell, mine.index),
            group=world.group("pp"),
        )
        stage.replica = replica
        self._schedule = kind(
            stage, cell.batch.microbatches, loss_fn=self._loss_function(assembly, replica, cell), scale_grads=False
        )

    def _loss_function(self, assembly: Assembly, replica: Replica, cell: Cell) -> Callable[[Tensor, Tensor], Tensor]:
        def scaled_share(output: Tensor, target: Tensor) -> Tensor:
            loss = assembly.loss(output, target) / cell.batch.microbatches
            self._losses.append(loss.detach())
            return replica.scale(loss)

        return scaled_share

    def run(self, batch: Batch) -> Tensor | None:
        """All microbatches of one step. Returns the mean loss on the last stage, None elsewhere."""
        self._losses.clear()
        inputs = (batch.inputs,) if self._first else ()
        self._schedule.step(*inputs, target=batch.targets if self._last else None, return_outputs=False)
        return torch.stack(self._losses).sum() if self._last else None


class TorchPipeline(StageOfEachProcess):
    """A pipeline whose order is one of torch's schedules."""

    kind: ClassVar[type[PipelineScheduleSingle]]

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return super().traits(cell, model) | {SEVERAL_IN_FLIGHT}

    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> TorchSchedule:
        return TorchSchedule(self.kind, assembly, replica, cell, world)


def _shapes(assembly: Assembly, cell: Cell, index: int) -> dict[str, Tensor]:
    """Example input and output of a stage, so that torch need not run it once to find out."""
    spread = stages(assembly.model, cell.layout.degree("pp"), cell.batch.sequence)
    rows, sequence = cell.rows_per_microbatch(), cell.batch.sequence
    if index == 0:
        given = assembly.model.example(rows, sequence)
    else:
        given = torch.empty(assembly.boundary(spread[index - 1][-1], rows, sequence), device="meta", requires_grad=True)
    output = torch.empty(assembly.boundary(spread[index][-1], rows, sequence), device="meta", requires_grad=True)
    return {"input_args": given, "output_args": output}
