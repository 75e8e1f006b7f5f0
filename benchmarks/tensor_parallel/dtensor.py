"""Tensor parallelism by torch.distributed.tensor: parameters become DTensors, and collectives follow from placements.

The cuts are Megatron's (column and row pairs); instead of writing the all-reduces out, each module is told what its input
and output look like over the ranks, and DTensor finds the communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.cell import Cell
from benchmarks.contract import DTENSOR, Assembly, Model, TensorParallel
from benchmarks.tied import shared_names, tie_again
from benchmarks.world import World


def _style(style: str) -> ParallelStyle:
    """The `ParallelStyle` of a row of the tensor plan."""
    return {
        # A DTensor input lets the gradients of all column layers of the region add up before they are reduced, once.
        "region": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "column": ColwiseParallel(),
        "row": RowwiseParallel(),
        "vocabulary": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }[style]


@dataclass(frozen=True)
class Strategy(TensorParallel):
    """`parallelize_module` over the model's plan; no knobs."""

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return frozenset({DTENSOR})

    def shard(self, assembly: Assembly, plan: Mapping[str, str], world: World) -> Assembly:
        for part in assembly.parts:
            shared = shared_names(part.module)
            parallelize_module(part.module, world.mesh("tp"), {name: _style(style) for name, style in plan.items()})
            tie_again(part.module, shared)
            for name, parameter in part.module.named_parameters(remove_duplicate=False):
                if isinstance(parameter, DTensor) and isinstance(parameter.placements[0], Shard):
                    part.placements[name] = part.placements[name].sharded("tp", parameter.placements[0].dim)
        return assembly
