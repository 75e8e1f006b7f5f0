"""FairScale's sharded optimizer, OSS, as a recipe: what the strategies that use it share.

Each rank owns whole parameters, dealt out one after the other to the rank that has least, updates those, and broadcasts them.
A model whose largest weight is more than 1/N of it spreads unevenly.
"""

from __future__ import annotations

from dataclasses import replace

from fairscale.optim import OSS

from benchmarks.contract import OptimizerRecipe
from benchmarks.world import World


class KeepsGradients(OSS):
    """OSS whose gradients are emptied and not dropped.

    ShardedDataParallel lets small gradients be views of the buckets that it reduces. torch has since made dropping them the
    default of `zero_grad`; what backward then makes anew is no part of a bucket, and never reduced, without a word.
    """

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


def sharded(optimizer: OptimizerRecipe, world: World, kind: type[OSS] = OSS) -> OptimizerRecipe:
    """The recipe of the same optimizer, its state cut over the data ranks."""
    settings = {"optim": optimizer.kind, "group": world.group("dp"), **optimizer.settings}
    return replace(optimizer, kind=kind, settings=settings)
