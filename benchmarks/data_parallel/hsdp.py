"""Hybrid sharded data parallelism, `dp=AxB`: the model is fully sharded over B neighbours, and A such groups hold copies.

Gathers and reduce-scatters, most of the traffic, stay within B ranks, say the GPUs of a node with its fast links; between
the groups only the gradients of each rank's shard are all-reduced. Memory falls to 1/B, not 1/(A B) (Zhao et al., PyTorch
FSDP, 2023). By FSDP2: `fully_shard` over a mesh of two dimensions, the outer one replicates, the inner one shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy, fully_shard

from benchmarks.cell import Cell
from benchmarks.contract import (
    SEVERAL_IN_FLIGHT,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    Shares,
)
from benchmarks.data_parallel._fsdp_units import GATHERED, by_units, devices_problem, replica_of_units, shares_of_units
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.world import World, nested_dimensions


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `torch.distributed.fsdp.fully_shard`; its degrees are copies x shards."""

    nested = True
    offloads = frozenset({"parameters"})

    reshard: bool = True
    """Free a block's parameters after its forward and gather them again in backward. Always off under a pipeline with several
    microbatches in flight, which would gather for each of them."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        reshard = self.reshard and SEVERAL_IN_FLIGHT not in assembly.traits
        replicating, sharding = nested_dimensions("dp")
        mesh = world.mesh(replicating, sharding)

        def shard(module: nn.Module, policy: MixedPrecisionPolicy, offload: OffloadPolicy, rest: bool) -> None:
            # What is outside of blocks is needed again at once when backward starts: freeing it would only gather it twice.
            fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard and not rest)

        for part in assembly.parts:
            by_units(part, assembly.precision, world, cell.offload, shard)
        # An element's gradient lies on one rank of each group; copies of it in other groups must not be counted again.
        replica = replica_of_units(assembly, optimizer, world, spread=frozenset({sharding}), keeps_gathered=not reshard)
        if self.reshard and not reshard:
            replica.caveats += (GATHERED,)
        return replica

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        return shares_of_units(cell, traits, degree=cell.layout.get("dp").degrees[1], reshard=bool(self.reshard))

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        degrees = cell.layout.get("dp").degrees
        if len(degrees) != 2:
            total = math.prod(degrees)
            return f"it takes two degrees, copies x shards, and here {len(degrees)}: write dp=2x{total // 2}:hsdp for example"
        return devices_problem("fully_shard", site, traits)
