"""GPipe: all forwards of all microbatches, then all backwards (Huang et al., 2019), by torch.distributed.pipelining.

With N stages and m microbatches of equal cost each device idles (N - 1) / (m + N - 1) of the step. Every stage keeps the
activations of all m microbatches until their backwards, which is what 1F1B saves.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import ScheduleGPipe

from benchmarks.cell import Cell
from benchmarks.contract import (
    SEPARATE_STAGES,
    SEVERAL_IN_FLIGHT,
    TIED_ACROSS_STAGES,
    Assembly,
    Model,
    Part,
    PipelineParallel,
    Replica,
)
from benchmarks.pipeline_parallel._stages import tied_across
from benchmarks.pipeline_parallel._torch_schedule import TorchSchedule, split
from benchmarks.world import World


@dataclass(frozen=True)
class Strategy(PipelineParallel):
    """One process for each stage; no knobs."""

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return frozenset({SEPARATE_STAGES, SEVERAL_IN_FLIGHT} | ({TIED_ACROSS_STAGES} if tied_across(cell, model) else set()))

    def split(self, model: Model, cell: Cell, world: World) -> list[Part]:
        return split(model, cell, world)

    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> TorchSchedule:
        return TorchSchedule(ScheduleGPipe, assembly, replica, cell, world)
