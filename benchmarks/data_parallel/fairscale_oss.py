"""ZeRO stage 1 by FairScale: OSS, a sharded optimizer, beside DistributedDataParallel.

DDP averages all gradients on all ranks; each rank then updates the parameters that it owns and broadcasts them. It is the
forerunner of torch's `ZeroRedundancyOptimizer`; all parameters of an owner lie in one buffer, which is broadcast at once.
FairScale is no longer maintained.

Memory of a rank (ZeRO, section 5, in fp32 with AdamW, for P parameters on N ranks): 4 P parameters + 4 P gradients + 8 P / N
state, where parameters can be dealt out evenly; DDP's buckets hold the gradients once more until they become views of them.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from benchmarks.data_parallel._oss import sharded
from benchmarks.data_parallel._reducer import ReducedReplica, reduced
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.world import World


@dataclass(frozen=True)
class Strategy(DataParallel):
    """No knobs."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        if HOOKS_DO_NOT_TELL & assembly.traits:
            return AfterBackward(assembly, sharded(optimizer, world), world)
        wrapped = [reduced(part, assembly, world, gradient_as_bucket_view=True) for part in assembly.parts]
        return ReducedReplica(assembly, sharded(optimizer, world), world, modules=wrapped)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        # Gradients once as backward leaves them and once in the buckets that are reduced, one at a time after it.
        gradients = 1.0 if HOOKS_DO_NOT_TELL & traits else 2.0
        return Shares(gradients=gradients, optimizer_state=1 / cell.layout.degree("dp"))

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if DTENSOR in traits and SPLITS_BACKWARD in traits:
            return (
                "OSS works on the plain tensors behind DTensor parameters. These become DTensors anew in every "
                "forward (torch.distributed.tensor.parallel.ddp), and a schedule that computes weight gradients apart does "
                "not follow them back (torch/distributed/pipelining/_backward.py): use plain tensors, or whole backwards"
            )
        return None
