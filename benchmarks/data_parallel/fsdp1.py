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
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from benchmarks.cell import Cell
from benchmarks.contract import (
    DTENSOR,
    SEVERAL_DEVICES,
    SEVERAL_IN_FLIGHT,
    SPLITS_BACKWARD,
    TIED_ACROSS_STAGES,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    Placement,
    R,
    Shares,
)
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica, held
from benchmarks.site import Site
from benchmarks.world import World


class _Replica(LocalReplica):
    """Reduces with the last backward of a step only: until then whole gradients add up on every rank."""

    modules: list[FullyShardedDataParallel]

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        if last:
            return run()
        with self.modules[part].no_sync():
            return run()

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
        part = 1 / cell.layout.degree("dp")
        gradients = part if cell.batch.microbatches == 1 else 1.0
        return Shares(parameters=part, gradients=gradients, optimizer_state=part, gathered="blocks" if self.reshard else "all")

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if DTENSOR in traits:
            return (
                "FSDP1 puts new Parameter objects into the module where parameters are DTensors (_use_unsharded_views in "
                "torch.distributed.fsdp._flat_param), and the optimizer's never get a gradient: cut tensors by plain ones"
            )
        if SEVERAL_IN_FLIGHT in traits and cell.batch.microbatches > 1:
            return (
                "FSDP1 frees a unit's parameters after the backward of one microbatch (_post_backward_hook in "
                "torch.distributed.fsdp._runtime_utils), while those of others in flight still need them: use FSDP2, or one "
                "microbatch"
            )
        if TIED_ACROSS_STAGES in traits:
            return (
                "the two copies of a weight that stages share lie at different places of two flattened units, so that a rank "
                "holds other elements of the one than of the other, and their gradients cannot be summed: use FSDP2"
            )
        if SPLITS_BACKWARD in traits:
            return (
                "a schedule that computes weight gradients apart writes them without the hooks by which FSDP1 reduces "
                "(torch/distributed/pipelining/_backward.py): choose a schedule with whole backwards"
            )
        if SEVERAL_DEVICES in traits and site.kind == "cuda":
            return (
                "FSDP1 takes the parameters of a process to be on one device, and this pipeline holds them on several: choose "
                "a pipeline with a process for each stage"
            )
        return None
