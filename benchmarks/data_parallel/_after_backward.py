"""Averages gradients once a step, after all backwards: for what keeps data parallelism's own reducer from seeing them.

Buckets keep the number of all-reduces small. Nothing overlaps with backward, so the whole of the reduction is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.contract import SPLITS_BACKWARD, Assembly, OptimizerRecipe
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica, local
from benchmarks.world import World

DEFAULT_BUCKET_MB = 25
NO_OVERLAP = (
    "no overlap: this schedule computes weight gradients apart and writes them without autograd's hooks, so they are reduced "
    "after the last backward"
)
NO_OVERLAP_WHERE_NESTED = (
    "no overlap: this schedule runs backwards inside of one another, each of which fires autograd's hooks with a part of the "
    "gradients, so they are reduced after the last backward"
)


class AfterBackward(LocalReplica):
    """A whole copy whose gradients are averaged over the data axis at the end of a step.

    Args:
        bucket_mb: mebibytes of gradients that are reduced together.
    """

    def __init__(self, assembly: Assembly, optimizer: OptimizerRecipe, world: World, bucket_mb: int = DEFAULT_BUCKET_MB):
        for part in assembly.parts:
            materialize(part, world)
        super().__init__(assembly, optimizer, world)
        self.caveats = (no_overlap(assembly),)
        self._group, self._degree = world.group("dp"), world.degrees["dp"]
        self._bucket_bytes = bucket_mb * 2**20

    def complete(self) -> None:
        # Before copies of one weight are summed: a ring adds the ranks up in an order that depends on an element's place in
        # its bucket, so that copies which were equal before it differ in their last bits after it.
        there = (entry.parameter.grad for entry in self._held if entry.parameter.grad is not None)  # `finish` names the others
        for bucket in _buckets((local(gradient) for gradient in there), self._bucket_bytes):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, group=self._group)
            flat /= self._degree
            for gradient, mean in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(mean.view_as(gradient))


def no_overlap(assembly: Assembly) -> str:
    """The caveat of a reduction after the last backward."""
    return NO_OVERLAP if SPLITS_BACKWARD in assembly.traits else NO_OVERLAP_WHERE_NESTED


def _buckets(gradients: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Runs of gradients of one kind that together have at least `size` bytes, where there are as many."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and (gradient.dtype, gradient.device) != (bucket[0].dtype, bucket[0].device):
            yield bucket
            bucket = []
        bucket.append(gradient)
        if sum(g.nbytes for g in bucket) >= size:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
