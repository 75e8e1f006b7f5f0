"""What the schedules of torch.distributed.pipelining (PiPPy's successor) need to serve any data strategy.

torch's stage calls autograd itself and knows DDP and FSDP modules by type. Here a stage wraps a plain shell module, and its
one backward method hands every backward to the `Replica`, which alone knows how its gradients are reduced. The 1/m of the
mean stands inside the loss, so the schedule scales nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.utils.checkpoint import GraphExecGroup

from benchmarks.cell import Cell
from benchmarks.contract import SEVERAL_IN_FLIGHT, Assembly, Batch, Model, Replica
from benchmarks.pipeline_parallel._stages import SpreadStages
from benchmarks.site import Site
from benchmarks.stages import spread
from benchmarks.world import World

BOOKKEEPING = (
    "bookkeeping: torch.distributed.pipelining keeps its books in Python for each microbatch and stage, a fixed time that on a "
    "CPU makes small stages slower than the same sends and receives written by hand; that is no property of the schedule"
)

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Shell(nn.Module):
    """Hides the type of the module it calls."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)


class DrivenByReplica:
    """Mixed into one of torch's stages: its backward is run by a replica."""

    replica: Replica
    position: int
    """Of its part among those of this rank."""

    def backward_maybe_with_nosync(self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False) -> Any:
        # torch asks autograd for the weight gradients of one layer after the other, and checkpointing would repeat the forward
        # of a whole block for each. No two of them need the same activation, so that one repetition serves all.
        repeats_once = GraphExecGroup() if backward_type == "weight" else nullcontext()

        def run() -> Any:
            with repeats_once:
                return super(DrivenByReplica, self).backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)

        return self.replica.backward(self.position, run, kind=backward_type, last=last_backward)


class Stage(DrivenByReplica, PipelineStage):
    """A stage whose shapes are given."""


class TorchSchedule:
    """One of torch's schedules over the stages of this rank.

    Args:
        build: makes it of the stages and the loss of a microbatch.
    """

    def __init__(
        self,
        stages: Sequence[DrivenByReplica],
        build: Callable[[Sequence[DrivenByReplica], LossFunction], Any],
        assembly: Assembly,
        replica: Replica,
        microbatches: int,
    ):
        self._losses: list[Tensor] = []
        self._first = any(stage.is_first for stage in stages)
        self._last = any(stage.is_last for stage in stages)
        for position, stage in enumerate(stages):
            stage.replica, stage.position = replica, position

        def scaled_share(output: Tensor, target: Tensor) -> Tensor:
            loss = assembly.loss(output, target) / microbatches
            self._losses.append(loss.detach())
            return replica.scale(loss)

        self._schedule = build(stages, scaled_share)

    def run(self, batch: Batch) -> Tensor | None:
        """All microbatches of one step. Returns the mean loss where the last stage is held, None elsewhere."""
        self._losses.clear()
        inputs = (batch.inputs,) if self._first else ()
        self._schedule.step(*inputs, target=batch.targets if self._last else None, return_outputs=False)
        return torch.stack(self._losses).sum() if self._last else None


class TorchPipeline(SpreadStages):
    """A pipeline whose order is one of torch's schedules, with one stage on each process."""

    kind: ClassVar[type[PipelineScheduleSingle]]

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return super().traits(cell, model) | {SEVERAL_IN_FLIGHT}

    def caveats(self, device_kind: str) -> tuple[str, ...]:
        return (BOOKKEEPING,) if device_kind == "cpu" else ()

    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> TorchSchedule:
        microbatches = cell.batch.microbatches

        def build(stages: Sequence[DrivenByReplica], loss: LossFunction) -> Any:
            return self.ordered(stages, microbatches, loss_fn=loss, scale_grads=False)

        return TorchSchedule(self.stages(assembly, replica, cell, world), build, assembly, replica, microbatches)

    def ordered(self, stages: Sequence[Any], microbatches: int, **options: Any) -> Any:
        """torch's schedule over the stages of one rank."""
        (stage,) = stages
        return self.kind(stage, microbatches, **options)

    def stages(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> list[DrivenByReplica]:
        """torch's stage of each part of this rank."""
        units = spread(self, assembly.model, cell)
        return [
            Stage(
                Shell(module),
                part.index,
                part.count,
                world.device,
                **_shapes(assembly, cell, units, part.index),
                group=world.group("pp"),
            )
            for part, module in zip(assembly.parts, replica.modules, strict=True)
        ]


class OneForwardOneBackward(TorchPipeline):
    """1F1B, wherever its stages come from."""

    kind = Schedule1F1B

    def in_flight(self, cell: Cell, model: Model, stage: int) -> int:
        return min(cell.batch.microbatches, cell.layout.degree("pp") - stage)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        stages, microbatches = cell.layout.degree("pp"), cell.batch.microbatches
        if microbatches < stages:
            return (
                f"torch's Schedule1F1B refuses {microbatches} microbatches on {stages} stages: it needs at least as many "
                f"microbatches as stages (torch/distributed/pipelining/schedules.py, Schedule1F1B.__init__)"
            )
        return None


def _shapes(assembly: Assembly, cell: Cell, stages: Sequence[Sequence[str]], index: int) -> dict[str, Tensor]:
    """Example input and output of a stage, so that torch need not run it once to find out."""
    rows, sequence = cell.rows_per_microbatch(), cell.batch.sequence
    if index == 0:
        given = assembly.model.example(rows, sequence)
    else:
        given = torch.empty(assembly.boundary(stages[index - 1][-1], rows, sequence), device="meta", requires_grad=True)
    output = torch.empty(assembly.boundary(stages[index][-1], rows, sequence), device="meta", requires_grad=True)
    return {"input_args": given, "output_args": output}
