"""Fully sharded data parallelism by the older wrapper, FSDP1 (`FullyShardedDataParallel`; Zhao et al., PyTorch FSDP, 2023),
for comparison.

The parameters of a unit are flattened, one behind the other, into a single tensor of which each rank keeps 1/N: one
collective a unit, where FSDP2 cuts every parameter by itself. So a rank's share of a parameter is a run of its elements, or
nothing, and what lies where depends on the other parameters of the unit.

In mixed precision units are gathered in fp32 and computed in 16 bits by autocast: gathered in 16 bits, FSDP1 would also add up
the gradients of several microbatches in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from benchmarks.cell import Cell
from benchmarks.contract import DTENSOR, Assembly, DataParallel, OptimizerRecipe, Placement, Shares
from benchmarks.data_parallel._flat_units import flat_problem, flat_shares
from benchmarks.data_parallel._no_sync import NoSyncReplica
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica, held
from benchmarks.site import Site
from benchmarks.world import World


class _Replica(NoSyncReplica):
    """Finds its parameters again when they are whole."""

    modules: list[FullyShardedDataParallel]

    def complete(self) -> None:
        for entry in self._held:
            if entry.parameter.numel() == 0:  # all of its elements lie on other ranks, and so does its gradient
                entry.parameter.grad = torch.empty_like(entry.parameter)

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for module in self.modules:
            with FullyShardedDataParallel.summon_full_params(module, writeback=False):
                inside = {id(parameter) for parameter in module.parameters()}
                for entry in self._held:
                    if id(entry.parameter) in inside:
                        yield entry.placement, lambda p=entry.parameter: p.detach().clone()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `torch.distributed.fsdp.FullyShardedDataParallel`."""

    reshard: bool = True
    """Free a unit's parameters after its forward and gather them again in backward (`FULL_SHARD`). Off: hold them until
    backward (`SHARD_GRAD_OP`)."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        options = {
            "process_group": world.group("dp"),
            "sharding_strategy": ShardingStrategy.FULL_SHARD if self.reshard else ShardingStrategy.SHARD_GRAD_OP,
            "device_id": world.device,
            "use_orig_params": True,  # parameters keep their identity, and norms can tell them apart
        }
        modules, parameters = [], []
        for part in assembly.parts:
            parameters += held(part)  # their names change when units are wrapped
            for name in part.blocks:
                block = part.module.get_submodule(name)
                materialize(part, world, module=block)
                part.module.set_submodule(name, FullyShardedDataParallel(block, **options))
            materialize(part, world)
            modules.append(FullyShardedDataParallel(part.module, **options))
        return _Replica(assembly, optimizer, world, modules=modules, parameters=parameters, spread=frozenset({"dp"}))

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        return flat_shares(cell, reshard=self.reshard)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if DTENSOR in traits:
            return (
                "FSDP1 puts new Parameter objects into the module where parameters are DTensors (_use_unsharded_views in "
                "torch.distributed.fsdp._flat_param), and the optimizer's never get a gradient: cut tensors by plain ones"
            )
        return flat_problem("FSDP1", "_post_backward_hook in torch.distributed.fsdp._runtime_utils", cell, site, traits)
