"""Batch norm over what a rank sees, and over all data ranks: torch's own on GPUs, written by hand on CPUs.

Ioffe and Szegedy, Batch Normalization, 2015: each channel is shifted to mean 0 and divided by its standard deviation over
the batch. Where data parallelism cuts the batch, every rank would so compute another function than one device does. With
the statistics taken over all ranks it is the same function again, for one all-reduce in forward and one in backward.

No running statistics are kept: only inference reads them, and training would count a batch twice where checkpointing runs
a forward again. So there are no buffers, which strategies would have to broadcast, shard or send.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


class BatchNorm(nn.BatchNorm2d):
    """Over the images that this rank sees at once. Statistics are fp32; the output has the input's dtype."""

    def __init__(self, channels: int, epsilon: float = 1e-5):
        super().__init__(channels, eps=epsilon, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        # Fully sharded mixed precision gathers the parameters in 16 bit; kernels want them in fp32.
        return F.batch_norm(x, None, None, self.weight.float(), self.bias.float(), training=True, eps=self.eps)


class SynchronisedBatchNorm(BatchNorm):
    """Over the images of all ranks of a group, by plain collectives.

    The ranks' sums, sums of squares and counts are added up. The all-reduce is one that autograd knows: as each rank's
    loss depends on every rank's images, backward adds up the gradients of the sums over the ranks, too.
    """

    def __init__(self, local: BatchNorm, group: dist.ProcessGroup):
        super().__init__(local.num_features, local.eps)
        self.weight, self.bias = local.weight, local.bias
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        values = x.float()
        count = values.new_full((1,), x.numel() / x.size(1))
        mine = torch.cat((values.sum((0, 2, 3)), values.square().sum((0, 2, 3)), count))
        sums, squares, count = all_reduce(mine, group=self._group).split((x.size(1), x.size(1), 1))
        mean = sums / count
        variance = (squares / count - mean.square()).clamp(min=0)
        scale = self.weight.float() * (variance + self.eps).rsqrt()
        shift = self.bias.float() - mean * scale
        return (values * scale[:, None, None] + shift[:, None, None]).to(x.dtype)


def synchronise(module: nn.Module, group: dist.ProcessGroup, device_type: str) -> None:
    """Replace every batch norm below `module` by one over all ranks of `group`; parameters stay the same objects."""
    if device_type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(module, group)
        return
    for name, layer in list(module.named_modules()):
        if isinstance(layer, BatchNorm):
            module.set_submodule(name, SynchronisedBatchNorm(layer, group))
