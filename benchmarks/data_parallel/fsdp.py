"""Fully sharded data parallelism (FSDP2, `fully_shard`): each rank keeps 1/N of every parameter, gradient and optimizer state.

Before a block runs its parameters are all-gathered, after it they are freed again; its gradients are reduce-scattered, so
each rank updates its own shard alone. This is ZeRO stage 3 (Rajbhandari et al., 2020; Zhao et al., PyTorch FSDP, 2023).

In mixed precision the blocks are gathered in the compute dtype, which halves what is sent; gradients are reduced in fp32.
Embedding and head, outside the blocks, stay in fp32 under autocast, so that the residual stream is what it is elsewhere.

A schedule that computes weight gradients apart writes them without the hooks by which a block is reduced when its backward
ends. There whole gradients add up for the whole step, and every block is reduced after the last backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from benchmarks.cell import Cell
from benchmarks.contract import (
    SEVERAL_DEVICES,
    SEVERAL_IN_FLIGHT,
    SPLITS_BACKWARD,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    Part,
    R,
    Shares,
)
from benchmarks.data_parallel._after_backward import NO_OVERLAP
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


class _Replica(LocalReplica):
    """Reduces with the last backward of a step only: until then whole gradients add up on every rank."""

    modules: list[FSDPModule]
    reshard: bool

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        module = self.modules[part]
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        if not self.reshard:
            # Freed after the backward of a microbatch, parameters would be gathered again for the next one's.
            module.set_reshard_after_backward(last)
        return run()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `torch.distributed.fsdp.fully_shard`."""

    reshard: bool = True
    """Free a block's parameters after its forward and gather them again in backward. Off: gather once a step, hold them longer.
    Always off under a pipeline with several microbatches in flight, which would gather for each of them."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        reshard = self.reshard and SEVERAL_IN_FLIGHT not in assembly.traits
        for part in assembly.parts:
            _shard(part, assembly.precision, reshard, world)
        caveats = (GATHERED,) if self.reshard and not reshard else ()
        if SPLITS_BACKWARD in assembly.traits:
            replica = UnitsAfterBackward(assembly, optimizer, world, spread=frozenset({"dp"}))
            caveats += (NO_OVERLAP,)
        else:
            replica = _Replica(assembly, optimizer, world, spread=frozenset({"dp"}))
            replica.reshard = reshard
        replica.caveats = caveats
        return replica

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        part = 1 / cell.layout.degree("dp")
        # Gradients of all microbatches but the last add up whole.
        gradients = part if cell.batch.microbatches == 1 else 1.0
        gathered = "blocks" if self.reshard and SEVERAL_IN_FLIGHT not in traits else "all"
        return Shares(parameters=part, gradients=gradients, optimizer_state=part, gathered=gathered)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if SEVERAL_DEVICES in traits and site.kind == "cuda":
            return (
                "fully_shard moves all parameters of a process to the one device of its mesh, and this pipeline holds them on "
                "several: choose a pipeline with a process for each stage"
            )
        return None


def _shard(part: Part, precision: Precision, reshard: bool, world: World) -> None:
    """Shard blocks first, then what is left, making one block's parameters at a time so that none holds the model whole."""
    mesh = world.mesh("dp")
    policy = MixedPrecisionPolicy(
        param_dtype=precision.compute if precision.mixed else None, reduce_dtype=precision.reduction, cast_forward_inputs=False
    )
    for name in part.blocks:
        block = part.module.get_submodule(name)
        materialize(part, world, module=block)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    materialize(part, world)
    rest = MixedPrecisionPolicy(reduce_dtype=precision.reduction, cast_forward_inputs=False)
    # The root's own parameters are needed again at once when backward starts: freeing them would only gather them twice.
    fully_shard(part.module, mesh=mesh, mp_policy=rest, reshard_after_forward=False)
