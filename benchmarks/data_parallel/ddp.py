"""Distributed data parallelism: every rank holds the whole model, gradients are averaged in buckets while backward runs
(Li et al., PyTorch Distributed, VLDB 2020).

With several microbatches the gradients of all but the last only add up locally. DDP itself decides whether to reduce in
*forward*, which is too early where a pipeline runs further forwards before a backward; so its own decision is switched off
here, and the reducer is armed right before the last backward.

Under a schedule that computes weight gradients apart, the reducer's hooks would fire with half of the gradients missing and
average those, silently. There nothing is wrapped, and gradients are averaged after the last backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch.nn.parallel import DistributedDataParallel

from benchmarks.cell import Cell
from benchmarks.contract import (
    DTENSOR,
    SPLITS_BACKWARD,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    R,
    Shares,
)
from benchmarks.data_parallel._after_backward import DEFAULT_BUCKET_MB, AfterBackward
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica
from benchmarks.tied import read_through
from benchmarks.world import World


class _Replica(LocalReplica):
    """Arms the reducer for the last backward of each part."""

    modules: list[DistributedDataParallel]

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        if last:
            # What torch's own pipeline stage does for DDP (torch/distributed/pipelining/stage.py): autograd hooks
            # of a backward that was not prepared are ignored.
            self.modules[part].reducer.prepare_for_backward([])
        return run()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `torch.nn.parallel.DistributedDataParallel`."""

    bucket_mb: int = 0
    """Mebibytes of gradients that are reduced together; 0: DDP's own default, 25 with a first bucket of 1."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        if SPLITS_BACKWARD in assembly.traits:
            return AfterBackward(assembly, optimizer, world, self.bucket_mb or DEFAULT_BUCKET_MB)
        # By its mesh DDP knows that the module may hold DTensors over another axis, and reduces their local tensors; named
        # by process group alone it fails on them. The mesh costs a walk over all parameters in each forward.
        dtensors = DTENSOR in assembly.traits
        how = {"device_mesh": world.mesh("dp")} if dtensors else {"process_group": world.group("dp")}
        wrapped = []
        for part in assembly.parts:
            materialize(part, world)
            if dtensors:
                # DDP swaps DTensors for local tensors by the first name alone (torch/distributed/tensor/parallel/ddp.py
                # walks named_parameters, which leaves out second names), and a shared weight would fall in two.
                read_through(part.module)
            ddp = DistributedDataParallel(
                part.module, bucket_cap_mb=self.bucket_mb or None, gradient_as_bucket_view=True, **how
            )
            ddp.require_backward_grad_sync = False
            wrapped.append(ddp)
        return _Replica(assembly, optimizer, world, modules=wrapped)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        # Once as backward leaves them and once in the buckets that are reduced, of which there is one at a time after it.
        return Shares() if SPLITS_BACKWARD in traits else Shares(gradients=2.0)
