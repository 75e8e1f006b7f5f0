"""Tensor parallelism by torch.distributed.tensor: parameters become DTensors, and collectives follow from placements.

The cuts are Megatron's (column and row pairs); instead of writing the all-reduces out, each module is told what its input
and output look like over the ranks, and DTensor finds the communication. With sequence parallelism the stream between
pairs is said to be cut along its tokens, so that DTensor finds all-gathers and reduce-scatters; the gradients of norms come
out as partial sums over the ranks, as which they are marked, and are summed before the update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from benchmarks.cell import Cell
from benchmarks.contract import DTENSOR, Assembly, Model, TensorParallel
from benchmarks.site import Site
from benchmarks.tensor_parallel._limits import loss_problem, sequence_problem
from benchmarks.tensor_parallel._on_cpu import caveats
from benchmarks.tied import shared_names, tie_again
from benchmarks.world import World

DISPATCH = (
    "dispatch: DTensor finds out in Python what each operation means for the ranks, a fixed time that makes a small step on a "
    "CPU several times slower than the same cuts written by hand; that is no property of tensor parallelism"
)


@dataclass(frozen=True)
class Strategy(TensorParallel):
    """`parallelize_module` over the model's plan."""

    sequence: bool = False
    """Sequence parallelism: between pairs each rank has its share of the tokens."""
    loss: bool = False
    """Loss parallelism: the vocabulary stays cut in the cross entropy."""
    asynchronous: bool = False
    """Asynchronous tensor parallelism: the compiler cuts a matrix product and the gather or scatter beside it into pieces
    that overlap, over symmetric memory (torch/distributed/_symmetric_memory)."""

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return frozenset({DTENSOR})

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if self.asynchronous and site.kind != "cuda":
            return "asynchronous tensor parallelism copies between GPUs through symmetric memory: it needs CUDA devices"
        if self.asynchronous and not self.sequence:
            return "asynchronous tensor parallelism overlaps gathers and scatters, and there are none: add sequence=true"
        if self.asynchronous and cell.compile == "none":
            return "asynchronous tensor parallelism is a pass of the compiler: add compile=model"
        return (sequence_problem(cell) if self.sequence else None) or (loss_problem(cell) if self.loss else None)

    def shard(self, assembly: Assembly, plan: Mapping[str, str], world: World) -> Assembly:
        if self.asynchronous:
            _overlap(world)
        mesh = world.mesh("tp")
        for part in assembly.parts:
            shared = shared_names(part.module)
            styles = {name: self._style(style) for name, style in plan.items()}
            parallelize_module(part.module, mesh, {name: style for name, style in styles.items() if style is not None})
            tie_again(part.module, shared)
            for name, parameter in part.module.named_parameters(remove_duplicate=False):
                if isinstance(parameter, DTensor) and isinstance(parameter.placements[0], Shard):
                    part.placements[name] = part.placements[name].sharded("tp", parameter.placements[0].dim)
        changes = {"caveats": caveats(assembly, world, DISPATCH)}
        if self.sequence:
            last, degree = assembly.model.units[-1], mesh.size()  # the last unit takes the whole sequence

            def boundary(unit: str, rows: int, sequence: int) -> tuple[int, ...]:
                return assembly.model.boundary(unit, rows, sequence if unit == last else sequence // degree)

            changes["boundary"] = boundary
        if self.loss:

            def loss(output: Tensor, target: Tensor) -> Tensor:
                return assembly.model.loss(output, target).to_local()

            # Around the whole schedule: torch implements the cut cross entropy for as long as the context lasts, and contexts
            # in each other remove each other's implementation.
            changes |= {"loss": loss, "step_context": loss_parallel}
        return dataclasses.replace(assembly, **changes)

    def _style(self, style: str) -> ParallelStyle | None:
        """The `ParallelStyle` of a row of the tensor plan; None where nothing is to be said."""
        stream = Shard(1) if self.sequence else Replicate()
        logits = Shard(-1) if self.loss else Replicate()
        always = {
            # A DTensor input lets the gradients of all column layers of the region add up before they are reduced, once.
            "region": PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate()),
            "column": ColwiseParallel(),
            "row": RowwiseParallel(output_layouts=stream),
            "vocabulary": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
            "head": ColwiseParallel(input_layouts=stream, output_layouts=logits, use_local_output=not self.loss),
        }
        with_shares = {
            "sequence": SequenceParallel(),
            "lookup": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(-2)),
            "whole": PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate(), use_local_output=True),
        }
        return always.get(style) or (with_shares[style] if self.sequence else None)


def _overlap(world: World) -> None:
    """Tell the compiler to overlap products with communication over the tensor axis."""
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(world.group("tp").group_name)
