"""Replication by FSDP2's machinery (`replicate`): every rank holds the whole model, and the gradients of a block are
all-reduced as soon as its backward is done.

What DistributedDataParallel does, without buckets: units are the blocks, parameters are DTensors that say of themselves that
they are replicated, and mixed precision and other axes work as they do with `fully_shard`. torch means it to take DDP's place
where DTensors are; it is not public yet (`torch.distributed._composable.replicate_with_fsdp`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy

from benchmarks.cell import Cell
from benchmarks.contract import Assembly, DataParallel, OptimizerRecipe, Shares
from benchmarks.data_parallel._fsdp_units import by_units, devices_problem, replica_of_units
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.world import World


@dataclass(frozen=True)
class Strategy(DataParallel):
    """No knobs."""

    offloads = frozenset({"parameters"})

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        mesh = world.mesh("dp")

        def copy(module: nn.Module, policy: MixedPrecisionPolicy, offload: OffloadPolicy, rest: bool) -> None:
            replicate(module, mesh=mesh, mp_policy=policy, offload_policy=offload)

        for part in assembly.parts:
            by_units(part, assembly.precision, world, cell.offload, copy)
        return replica_of_units(assembly, optimizer, world)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        return Shares(gradients=2.0)  # once as backward leaves them and once as they are reduced

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        return devices_problem("replicate", site, traits)
