"""ZeRO stage 1 by torch itself, `ZeroRedundancyOptimizer`: every rank holds all parameters and gradients, and the optimizer
state of the parameters that it owns (Rajbhandari et al., ZeRO, 2020).

DDP averages all gradients on all ranks; each rank then updates the parameters that it owns and broadcasts them. Ownership
is by whole parameters, the largest first to the rank that has least, so the shares are only about equal: a model whose
largest weight is more than 1/N of it spreads unevenly. All-reduce and broadcast together send half as much again as the
reduce-scatter and all-gather of an implementation that cuts flattened parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch.distributed.optim import ZeroRedundancyOptimizer

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import (
    DTENSOR,
    HOOKS_DO_NOT_TELL,
    SPLITS_BACKWARD,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    Shares,
)
from benchmarks.data_parallel._after_backward import AfterBackward
from benchmarks.data_parallel._reducer import ReducedReplica, reduced
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.world import World


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `torch.distributed.optim.ZeroRedundancyOptimizer`."""

    parameters_as_bucket_view: bool = False
    """Lay the parameters of each owner side by side, so that each rank broadcasts once and not for every parameter."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        sharded = replace(
            optimizer,
            kind=ZeroRedundancyOptimizer,
            settings={
                "optimizer_class": optimizer.kind,
                "process_group": world.group("dp"),
                "parameters_as_bucket_view": self.parameters_as_bucket_view,
                **optimizer.settings,
            },
        )
        if HOOKS_DO_NOT_TELL & assembly.traits:
            return AfterBackward(assembly, sharded, world)
        wrapped = [reduced(part, assembly, world, gradient_as_bucket_view=True) for part in assembly.parts]
        return ReducedReplica(assembly, sharded, world, modules=wrapped)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        # Gradients once as backward leaves them and once in the buckets that are reduced, one at a time after it.
        gradients = 1.0 if HOOKS_DO_NOT_TELL & traits else 2.0
        shapes = models.load(cell.model).parameter_shapes.values()
        largest = max(map(math.prod, shapes)) / sum(map(math.prod, shapes))
        return Shares(gradients=gradients, optimizer_state=max(1 / cell.layout.degree("dp"), largest))

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if {DTENSOR, SPLITS_BACKWARD} <= traits:
            return (
                "ZeroRedundancyOptimizer works on the plain tensors behind DTensors. These become DTensors anew in every "
                "forward (torch.distributed.tensor.parallel.ddp), and a schedule that computes weight gradients apart does "
                "not follow them back (torch/distributed/pipelining/_backward.py): use plain tensors, or whole backwards"
            )
        return None
