"""Distributed data parallelism: every rank holds the whole model, gradients are averaged in buckets while backward runs
(Li et al., PyTorch Distributed, VLDB 2020).

A bucket is all-reduced as soon as backward has filled it, so that communication hides behind the rest of backward. With
several microbatches only the last backward reduces: the gradients of the others add up locally.

Under a schedule that computes weight gradients apart, the reducer's hooks would fire with half of the gradients missing and
average those, silently. There nothing is wrapped, and gradients are averaged after the last backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook

from benchmarks.cell import Cell
from benchmarks.contract import (
    HOOKS_DO_NOT_TELL,
    SEVERAL_IN_FLIGHT,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    Shares,
)
from benchmarks.data_parallel._after_backward import DEFAULT_BUCKET_MB, AfterBackward
from benchmarks.data_parallel._reducer import ReducedReplica, reduced
from benchmarks.replica import LocalReplica
from benchmarks.site import Site
from benchmarks.world import World

HOOKS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `torch.nn.parallel.DistributedDataParallel`."""

    bucket_mb: int = 0
    """Mebibytes of gradients that are reduced together; 0: DDP's own default, 25 with a first bucket of 1. Few large buckets
    use a link better, many small ones overlap better."""
    gradient_as_bucket_view: bool = True
    """Let gradients be views of the buckets, so that they are not held twice."""
    static_graph: bool = False
    """Tell DDP that every step runs the same graph: it learns the order of gradients once and looks for nothing else later."""
    compression: Literal["none", "bf16", "fp16"] = "none"
    """What gradients are rounded to for the all-reduce, by a communication hook: half the bytes, and 16-bit gradients."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        if HOOKS_DO_NOT_TELL & assembly.traits:
            return AfterBackward(assembly, optimizer, world, self.bucket_mb or DEFAULT_BUCKET_MB)
        wrapped = []
        for part in assembly.parts:
            ddp = reduced(
                part,
                assembly,
                world,
                bucket_cap_mb=self.bucket_mb or None,
                gradient_as_bucket_view=self.gradient_as_bucket_view,
                static_graph=self.static_graph,
            )
            # A static graph is learnt in the first backward after a forward that reduces.
            ddp.require_backward_grad_sync = self.static_graph
            if self.compression != "none":
                ddp.register_comm_hook(world.group("dp"), HOOKS[self.compression])
            wrapped.append(ddp)
        return ReducedReplica(assembly, optimizer, world, modules=wrapped)

    def dtypes(self) -> Mapping[str, str]:
        return {} if self.compression == "none" else {"reduction": self.compression}

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        # Once as backward leaves them and once in the buckets that are reduced, of which there is one at a time after it.
        return Shares() if HOOKS_DO_NOT_TELL & traits else Shares(gradients=2.0)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if self.static_graph and (SEVERAL_IN_FLIGHT in traits or cell.batch.microbatches > 1):
            return (
                "with a static graph DDP reduces at the end of the first backward that it sees, whichever microbatch's it is "
                "(_DDPSink in torch/nn/parallel/distributed.py), and gradients come out wrong without a word: use one "
                "microbatch and no pipeline schedule, or static_graph=false"
            )
        if self.compression != "none" and cell.precision == "fp32":
            return (
                f"gradients rounded to {self.compression} are not those of fp32, in which reduction is fp32: use precision "
                "bf16 or fp16, or compression=none"
            )
        if self.compression != "none" and HOOKS_DO_NOT_TELL & traits:
            return (
                "compression is a hook of DDP's reducer, which sees no gradient of a schedule that computes weight gradients "
                "apart or runs backwards inside of one another: use compression=none, or a schedule with whole backwards"
            )
        if self.compression == "bf16" and site.kind == "cpu":
            return "DDP refuses its bf16 hook without NCCL 2.10 or newer (_check_comm_hook): use compression=fp16 on a CPU"
        return None
