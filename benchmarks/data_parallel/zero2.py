"""ZeRO stage 2 by DeepSpeed: every rank holds all parameters, and gradients and optimizer state of its share alone
(Rajbhandari et al., ZeRO, 2020).

As backward fills a bucket of gradients, each of its elements is reduced to the rank whose share it is in, and the others free
theirs. So gradients are reduced in the backward of every microbatch: kept whole until the last one, as stage 1 keeps them,
they would not be cut. Each rank then updates its share, and the updated shares are all-gathered.

Memory of a rank (section 5 of the paper, in fp32 with AdamW, for P parameters on N ranks): 4 P parameters + 4 P / N gradients
+ 8 P / N state. DeepSpeed updates a flat copy of its share, 4 P / N more, and holds one bucket besides, or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.cell import Cell
from benchmarks.contract import Assembly, DataParallel, OptimizerRecipe, Replica, Shares
from benchmarks.data_parallel import _deepspeed as shared
from benchmarks.site import Site
from benchmarks.world import World

PRELOAD = shared.PRELOAD


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of DeepSpeed's `zero_optimization`."""

    offloads = frozenset({"optimizer"})

    bucket_elements: int = shared.OWN_DEFAULT_BUCKET
    """Gradient elements that are reduced together (`reduce_bucket_size`) and parameters gathered together."""
    overlap_comm: bool = False
    """Reduce on a stream of its own beside backward, with a second bucket."""
    contiguous_gradients: bool = True
    """Copy gradients into the bucket as they are made, so that memory does not fall into pieces."""
    round_robin_gradients: bool = False
    """Deal parameters out to ranks in turn, so that all copy gradients to the host at the same time."""

    def configuration(self, cell: Cell) -> dict[str, Any]:
        return shared.configuration(
            cell,
            2,
            overlap_comm=self.overlap_comm,
            contiguous_gradients=self.contiguous_gradients,
            round_robin_gradients=self.round_robin_gradients,
            reduce_bucket_size=self.bucket_elements,
            allgather_bucket_size=self.bucket_elements,
        )

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> Replica:
        (part,) = assembly.parts
        parameters = shared.local_parts(assembly, world)
        inner = optimizer.build([entry.parameter for entry in parameters])
        engine = shared.start(part.module, inner, shared.ready(self.configuration(cell), world), world)
        return shared.EngineReplica(assembly, parameters, engine, world)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        part = 1 / cell.layout.degree("dp")
        # A bucket is as large as the model where it may be, and backward has made the gradients that fill it.
        return Shares(gradients=part + 1.0, optimizer_state=part, master=part)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        return shared.objection_of_stages(2, cell, site, traits)
