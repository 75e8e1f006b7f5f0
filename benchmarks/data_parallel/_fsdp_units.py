"""What the strategies built on FSDP2 share: a unit is a block or what is left around the blocks, and its gradients are
reduced together when its backward is done.

In mixed precision the blocks compute in the compute dtype, in which they are gathered, too; gradients are reduced in
fp32. Embedding and head, outside the blocks, stay in fp32 under autocast, so that the residual stream is what it is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy

from benchmarks.cell import Cell, Offload
from benchmarks.contract import (
    HOOKS_DO_NOT_TELL,
    SEVERAL_DEVICES,
    SEVERAL_IN_FLIGHT,
    Assembly,
    OptimizerRecipe,
    Part,
    R,
    Shares,
)
from benchmarks.data_parallel._after_backward import no_overlap
from benchmarks.data_parallel._units_after_backward import UnitsAfterBackward
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.techniques.precision import Precision
from benchmarks.world import World

GATHERED = (
    "gathered: with several microbatches in flight parameters stay gathered for the whole step, as with reshard=false; "
    "otherwise every microbatch would gather them again"
)


class UnitReplica(LocalReplica):
    """Reduces with the last backward of a step only: until then whole gradients add up on every rank."""

    modules: list[FSDPModule]
    keeps_gathered: bool

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        module = self.modules[part]
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        if self.keeps_gathered:
            # Freed after the backward of a microbatch, parameters would be gathered again for the next one's.
            module.set_reshard_after_backward(last)
        return run()


def replica_of_units(
    assembly: Assembly,
    optimizer: OptimizerRecipe,
    world: World,
    *,
    spread: frozenset[str] = frozenset(),
    keeps_gathered: bool = False,
) -> LocalReplica:
    """The replica of parts that `by_units` made.

    Args:
        spread: see `benchmarks.replica.GradientNorm`.
        keeps_gathered: whether parameters, once gathered, stay so until the last backward of the step.
    """
    if HOOKS_DO_NOT_TELL & assembly.traits:
        replica = UnitsAfterBackward(assembly, optimizer, world, spread=spread)
        replica.caveats = (no_overlap(assembly),)
        return replica
    replica = UnitReplica(assembly, optimizer, world, spread=spread)
    replica.keeps_gathered = keeps_gathered
    return replica


def shares_of_units(cell: Cell, traits: frozenset[str], *, degree: int, reshard: bool) -> Shares:
    """What a rank holds where units are cut over `degree` ranks. Gradients of all microbatches but the last add up whole."""
    part = 1 / degree
    gradients = part if cell.batch.microbatches == 1 else 1.0
    gathered = "blocks" if reshard and SEVERAL_IN_FLIGHT not in traits else "all"
    return Shares(parameters=part, gradients=gradients, optimizer_state=part, gathered=gathered)


def devices_problem(function: str, site: Site, traits: frozenset[str]) -> str | None:
    """Why units cannot lie on several devices of a process, in one sentence; None if they need not.

    Args:
        function: torch's, which makes the units.
    """
    if SEVERAL_DEVICES in traits and site.kind == "cuda":
        return (
            f"{function} moves all parameters of a process to the one device of its mesh, and this pipeline holds them on "
            "several: choose a pipeline with a process for each stage"
        )
    return None


def by_units(
    part: Part,
    precision: Precision,
    world: World,
    offload: Offload,
    apply: Callable[[nn.Module, MixedPrecisionPolicy, OffloadPolicy, bool], object],
) -> None:
    """Make units of the blocks, then of what is left; one is made real at a time, so that no rank holds the model whole.

    Args:
        offload: `parameters`: shards, their gradients and so the optimizer's state lie on the host, which updates; a block is
            copied to the device when it is gathered.
        apply: told a module, its policies and whether it is what is left; makes it a unit.
    """
    mixed = MixedPrecisionPolicy(
        param_dtype=precision.compute if precision.mixed else None, reduce_dtype=precision.reduction, cast_forward_inputs=False
    )
    on_host = offload == "parameters"
    placing = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if on_host else OffloadPolicy()
    device = torch.device("cpu") if on_host else world.device
    for name in part.blocks:
        block = part.module.get_submodule(name)
        materialize(part, world, module=block, device=device)
        apply(block, mixed, placing, False)
    materialize(part, world, device=device)
    apply(part.module, MixedPrecisionPolicy(reduce_dtype=precision.reduction, cast_forward_inputs=False), placing, True)
