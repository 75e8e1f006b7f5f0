"""`nn.DataParallel`: one process, several devices, a copy of the model on each made anew in every forward.

The oldest way, kept for comparison: torch itself advises DistributedDataParallel instead. The first device scatters the
batch, sends the parameters to all others, collects their outputs and computes the loss; backward adds up all gradients there,
and it alone updates. So the first device holds more and does more than the others, and Python's interpreter lock is shared by
the threads that drive them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import Assembly, DataParallel, OptimizerRecipe
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.world import World


@dataclass(frozen=True)
class Strategy(DataParallel):
    """No knobs."""

    def processes(self, degree: int) -> int:
        return 1

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        (part,) = assembly.parts
        materialize(part, world)
        spread = nn.DataParallel(part.module, device_ids=list(world.devices))
        return LocalReplica(assembly, optimizer, world, modules=[spread])

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if site.kind == "cpu":
            return "without a GPU nn.DataParallel calls the module as it is, and nothing is parallel: choose another data axis"
        if cell.layout.devices > cell.layout.degree("dp"):
            return (
                "nn.DataParallel drives all devices from one process and threads, in which the collectives and stages of "
                "other axes would meet each other: choose a data axis with a process for each rank"
            )
        if _means_to_share_statistics(cell):
            return (
                "nn.SyncBatchNorm takes its statistics over the processes of a group (torch/nn/modules/batchnorm.py), and "
                "nn.DataParallel's devices are threads of one process, each of which would norm its own images: use "
                "local norms, or a data axis with a process for each rank"
            )
        if cell.precision != "fp32" or cell.checkpointing != "none":
            return (
                "nn.DataParallel copies a module's attributes and not what they are bound to (Module._replicate_for_data_"
                "parallel), so that the forward which precision or checkpointing has put in place would run the first "
                "device's layers on every device: use fp32 without checkpointing, or another data axis"
            )
        return None


def _means_to_share_statistics(cell: Cell) -> bool:
    """Whether the model looks at the whole batch and, were it not cut further, should do so on several devices, too."""
    model = models.load(cell.model)
    uncut = cell.model_copy(update={"batch": cell.batch.model_copy(update={"microbatches": 1})})
    return model.mixes_rows and model.incomparable(uncut) is None
