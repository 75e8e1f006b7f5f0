"""DistributedDataParallel's reducer, armed by hand: what the strategies that average whole gradients while backward runs share.

With several microbatches the gradients of all but the last only add up locally. DDP itself decides whether to reduce in
*forward*, which is too early where a pipeline runs further forwards before a backward; so its own decision is switched off
here, and the reducer is armed right before the last backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch.nn.parallel import DistributedDataParallel

from benchmarks.contract import DTENSOR, Assembly, Part, R
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica
from benchmarks.tied import read_through
from benchmarks.world import World


class ReducedReplica(LocalReplica):
    """Arms the reducer for the last backward of each part."""

    modules: list[DistributedDataParallel]

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        if last and not self.modules[part].require_backward_grad_sync:
            # What torch's own pipeline stage does for DDP (torch/distributed/pipelining/stage.py): autograd hooks
            # of a backward that was not prepared are ignored.
            self.modules[part].reducer.prepare_for_backward([])
        return run()


def reduced(part: Part, assembly: Assembly, world: World, **options: Any) -> DistributedDataParallel:
    """The part, materialised, in a DDP that leaves it to `ReducedReplica` when to reduce.

    Args:
        options: of `DistributedDataParallel`.
    """
    materialize(part, world)
    how: dict[str, Any] = {"process_group": world.group("dp")}
    if DTENSOR in assembly.traits:
        # By its mesh DDP knows that the module may hold DTensors over another axis, and reduces their local tensors; named
        # by process group alone it fails on them. The mesh costs a walk over all parameters in each forward.
        how = {"device_mesh": world.mesh("dp")}
        # DDP swaps DTensors for local tensors by the first name alone (torch.distributed.tensor.parallel.ddp walks
        # named_parameters, which leaves out second names), and a shared weight would fall in two.
        read_through(part.module)
    wrapped = DistributedDataParallel(part.module, **how, **options)
    wrapped.require_backward_grad_sync = False
    return wrapped
