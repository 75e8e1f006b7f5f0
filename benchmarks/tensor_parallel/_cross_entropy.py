"""Cross entropy of logits whose last dimension, the vocabulary, is cut over ranks: loss parallelism.

    loss = log(sum over v of exp(logit_v)) - logit_target

Gathered logits are the largest activation of a model with a large vocabulary. Here they stay where they are: of each row
the ranks exchange three numbers, the largest logit, the sum of exponentials and the target's logit (Shoeybi et al.,
Megatron-LM, 2019, section 3).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def mean_cross_entropy(logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The mean over all rows, a scalar in fp32 that is the same on every rank.

    Args:
        logits: (..., vocabulary / ranks), this rank's share, in any dtype.
        targets: (...), the same on every rank.
    """
    return _MeanCrossEntropy.apply(logits.flatten(0, -2), targets.flatten(), group)


class _MeanCrossEntropy(torch.autograd.Function):
    """The gradient of row r by logit v is (softmax_v - [v is the target]) / rows: all of it local."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        logits = logits.float()
        largest = logits.amax(dim=-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - largest[:, None]  # so that no exponential overflows
        own = targets - group.rank() * logits.size(-1)
        elsewhere = (own < 0) | (own >= logits.size(-1))
        column = own.masked_fill(elsewhere, 0)[:, None]
        of_target = shifted.gather(-1, column).squeeze(-1).masked_fill(elsewhere, 0.0)
        softmax = shifted.exp_()
        sums = torch.stack([softmax.sum(dim=-1), of_target])
        dist.all_reduce(sums, group=group)
        softmax /= sums[0, :, None]
        ctx.save_for_backward(softmax, column, elsewhere)
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        softmax, column, elsewhere = ctx.saved_tensors
        by_logit = softmax.scatter_add(-1, column, (elsewhere.float() - 1.0)[:, None])
        return by_logit * (gradient / len(softmax)), None, None
