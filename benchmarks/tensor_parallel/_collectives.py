"""Communication inside a differentiated function: each operation's backward is the transpose of its forward.

| function | forward | backward |
|---|---|---|
| `copy` | x as it is | sum of the ranks' gradients |
| `add` | sum of the ranks' x | the gradient as it is |
| `gather` | the ranks' x one behind the other | this rank's share of the gradient |
| `share` | this rank's share of x | the ranks' gradients one behind the other |
| `gather_partial` | the ranks' x one behind the other | this rank's share of the sum of the gradients |
| `scatter_sum` | this rank's share of the sum of the ranks' x | the ranks' gradients one behind the other |

Which transpose is right follows from who holds what: the gradient of what all ranks hold alike is the same on all ranks if
each goes on with the whole of it (`gather`, `share`), and a part of a sum if each goes on with something of its own.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

# Since torch 2.13 they go by these names; both want the ranks' tensors joined along the first dimension.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def copy(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x, which all ranks hold alike and each uses for something of its own."""
    return _Copy.apply(x, group)


def add(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the ranks' x, which each goes on with in the same way."""
    return _Add.apply(x, group)


def gather(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """The ranks' x one behind the other along `dimension`, which each goes on with in the same way."""
    return _Gather.apply(x, dimension % x.dim(), group)


def share(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's share along `dimension` of x, which all ranks hold alike."""
    return _Share.apply(x, dimension % x.dim(), group)


def gather_partial(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """The ranks' x one behind the other along `dimension`, which each uses for something of its own."""
    return _GatherPartial.apply(x, dimension % x.dim(), group)


def scatter_sum(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's share along `dimension` of the sum of the ranks' x."""
    return _ScatterSum.apply(x, dimension % x.dim(), group)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _summed(gradient, ctx.group), None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dimension, ctx.group = dimension, group
        return _gathered(x, dimension, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _own(gradient, ctx.dimension, ctx.group), None, None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dimension, ctx.group = dimension, group
        return _own(x, dimension, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _gathered(gradient, ctx.dimension, ctx.group), None, None


class _GatherPartial(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dimension, ctx.group = dimension, group
        return _gathered(x, dimension, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _scattered_sum(gradient, ctx.dimension, ctx.group), None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dimension, ctx.group = dimension, group
        return _scattered_sum(x, dimension, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _gathered(gradient, ctx.dimension, ctx.group), None, None


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def _own(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    return x.chunk(group.size(), dimension)[group.rank()].contiguous()


def _gathered(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    ranks = x.new_empty((group.size(), *x.shape))
    _all_gather(ranks.flatten(0, 1), x.contiguous(), group=group)
    return ranks.movedim(0, dimension).flatten(dimension, dimension + 1)


def _scattered_sum(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    shares = x.unflatten(dimension, (group.size(), -1)).movedim(dimension, 0).contiguous()
    own = torch.empty_like(shares[0])
    _reduce_scatter(own, shares.flatten(0, 1), group=group)
    return own
