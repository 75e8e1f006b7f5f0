"""ZeRO stage 0 by DeepSpeed: plain data parallelism, the measure of what the other stages save (Rajbhandari et al., 2020).

Every rank holds the whole model and all of its gradients and optimizer state. Gradients are averaged in buckets after the
last backward, so nothing of it overlaps.

Memory of a rank (section 5 of the paper, in fp32 with AdamW, for P parameters): 4 P parameters + 4 P gradients + 8 P state.

DeepSpeed's own clipping counts a weight that two stages share twice (`clip_grad_norm_` in deepspeed/runtime/utils.py), so the
norm is taken and gradients are clipped here, as beside every other strategy that leaves gradients whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from benchmarks.cell import Cell
from benchmarks.contract import Assembly, DataParallel, OptimizerRecipe, Shares
from benchmarks.data_parallel import _deepspeed as shared
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.world import World

PRELOAD = shared.PRELOAD


class _Replica(LocalReplica):
    """DeepSpeed averages; its step would be that of the same torch optimizer, which is called here."""

    def __init__(self, assembly: Assembly, optimizer: OptimizerRecipe, world: World, config: dict[str, Any], bucket: int):
        super().__init__(assembly, optimizer, world, parameters=shared.local_parts(assembly, world))
        modules = nn.ModuleList(part.module for part in assembly.parts)
        self._engine = shared.start(modules, self._optimizer, shared.ready(config, world), world)
        self._bucket = bucket

    def reduce(self) -> None:
        # Told which gradients, as it would look for parameters in modules, where there are others behind DTensors.
        gradients = [entry.parameter.grad for entry in self._held]
        self._engine.buffered_allreduce_fallback(grads=gradients, elements_per_buffer=self._bucket)


@dataclass(frozen=True)
class Strategy(DataParallel):
    """How DeepSpeed averages."""

    bucket_elements: int = shared.OWN_DEFAULT_BUCKET
    """Gradient elements that are averaged together, at least."""

    def configuration(self, cell: Cell) -> dict[str, Any]:
        return {**shared.configuration(cell, 0), "gradient_clipping": 0.0}

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        return _Replica(assembly, optimizer, world, self.configuration(cell), self.bucket_elements)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        return Shares(gradients=2.0)  # as backward leaves them, and in the bucket that is averaged

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if cell.offload in ("optimizer", "parameters"):
            return "DeepSpeed's offload begins with stage 1, and it takes no optimizer but torch's: use stage 1, 2 or 3"
        return shared.objection(cell, site, traits)
