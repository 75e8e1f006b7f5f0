"""Fully sharded data parallelism (FSDP2, `fully_shard`): each rank keeps 1/N of every parameter, gradient and optimizer state.

Before a block runs its parameters are all-gathered, after it they are freed again; its gradients are reduce-scattered, so
each rank updates its own shard alone. This is ZeRO stage 3 (Rajbhandari et al., 2020; Zhao et al., PyTorch FSDP, 2023).

Resharding to a smaller group after forward (`reshard=2`) is what ZeRO++ calls hierarchical partitioning (Wang et al., 2023):
the gather of backward stays within groups of neighbours, for more memory.

A schedule that computes weight gradients apart writes them without the hooks by which a block is reduced when its backward
ends. There whole gradients add up for the whole step, and every block is reduced after the last backward.
"""

from __future__ import annotations

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
from benchmarks.world import World


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `torch.distributed.fsdp.fully_shard`."""

    offloads = frozenset({"parameters"})

    reshard: bool | int = True
    """Free a block's parameters after its forward and gather them again in backward. Off: gather once a step, hold them longer.
    A number: keep them cut over groups of so many neighbours in between. Always off under a pipeline with several microbatches
    in flight, which would gather for each of them."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        reshard = self.reshard if SEVERAL_IN_FLIGHT not in assembly.traits else False
        mesh = world.mesh("dp")

        def shard(module: nn.Module, policy: MixedPrecisionPolicy, offload: OffloadPolicy, rest: bool) -> None:
            # What is outside of blocks is needed again at once when backward starts: freeing it would only gather it twice.
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=policy,
                offload_policy=offload,
                reshard_after_forward=reshard if not rest else False,
            )

        for part in assembly.parts:
            by_units(part, assembly.precision, world, cell.offload, shard)
        replica = replica_of_units(assembly, optimizer, world, spread=frozenset({"dp"}), keeps_gathered=not reshard)
        if self.reshard and not reshard:
            replica.caveats += (GATHERED,)
        return replica

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        return shares_of_units(cell, traits, degree=cell.layout.degree("dp"), reshard=bool(self.reshard))

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        problem = devices_problem("fully_shard", site, traits)
        return problem or (None if isinstance(self.reshard, bool) else self._group_problem(cell))

    def _group_problem(self, cell: Cell) -> str | None:
        """Why parameters cannot be kept cut over groups of `reshard` neighbours."""
        degree = cell.layout.degree("dp")
        if not 1 < self.reshard < degree or degree % self.reshard:
            return (
                f"parameters cut over {degree} ranks cannot be kept cut over groups of {self.reshard}: use a divisor of "
                f"{degree} between both, or reshard=true or false"
            )
        if cell.layout.devices > degree:
            return (
                "fully_shard makes the groups of reshard on the ranks of one data axis alone, and all ranks of the world must "
                "take part (_get_post_forward_mesh_info in torch/distributed/fsdp/_fully_shard/_fsdp_init.py): use it "
                "without other axes, or reshard=true or false"
            )
        return None
