"""1F1B: after a warm-up each stage alternates one forward with one backward (Narayanan et al., PipeDream, 2019, in its
synchronous form), by torch.distributed.pipelining.

The bubble is GPipe's, (N - 1) / (m + N - 1) with N stages and m microbatches, but stage i holds the activations of at most
N - i microbatches instead of all m.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import Schedule1F1B

from benchmarks.cell import Cell
from benchmarks.contract import Model
from benchmarks.pipeline_parallel._torch_schedule import TorchPipeline
from benchmarks.site import Site


@dataclass(frozen=True)
class Strategy(TorchPipeline):
    """No knobs."""

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
