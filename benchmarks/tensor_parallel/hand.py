"""Tensor parallelism written out: Megatron's pairs of a column and a row cut (Shoeybi et al., Megatron-LM, 2019).

A *column* layer holds some of the outputs of a Linear, a *row* layer some of the inputs. In a pair, the row layer
eats exactly what the column layer on the same rank made, so the middle of the pair is never gathered:

    x (replicated) -> column -> nonlinearity or attention heads -> row -> sum over ranks -> y (replicated)

Forward costs one all-reduce a pair, where the row layers' partial sums meet. Backward costs one too: each rank's column
layers give only their own share of the gradient of x. The two functions below are each other's transpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contract import Assembly, Part, TensorParallel
from benchmarks.tied import shared_names, tie_again
from benchmarks.world import World


class _CopyToGroup(torch.autograd.Function):
    """Forward: x as it is. Backward: the sum of the ranks' gradients of it."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumOverGroup(torch.autograd.Function):
    """Forward: the sum of the ranks' partial x. Backward: the gradient as it is."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, None


class _GatherFromGroup(torch.autograd.Function):
    """Forward: the ranks' x side by side along the last dimension. Backward: this rank's share of the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        shares = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(shares, x.contiguous(), group=group)
        return torch.cat(shares, dim=-1)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient.chunk(ctx.group.size(), dim=-1)[ctx.group.rank()].contiguous(), None


class ColumnLinear(nn.Module):
    """Some of a Linear's outputs. Shapes: (..., inputs) to (..., outputs / degree)."""

    def __init__(self, whole: nn.Linear, degree: int):
        super().__init__()
        self.weight = _slice(whole.weight, 0, degree)
        self.bias = None if whole.bias is None else _slice(whole.bias, 0, degree)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """Some of a Linear's inputs. Shapes: (..., inputs / degree) to (..., outputs), summed over the ranks."""

    def __init__(self, whole: nn.Linear, degree: int, group: dist.ProcessGroup):
        super().__init__()
        self.weight = _slice(whole.weight, 1, degree)
        self.bias = whole.bias
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        y = _SumOverGroup.apply(F.linear(x, self.weight), self._group)
        # The bias belongs to the sum: added by every rank before it, it would count degree times.
        return y if self.bias is None else y + self.bias.to(y.dtype)


class VocabularyEmbedding(nn.Module):
    """Some of an Embedding's rows. A token whose row lies elsewhere gives zero here, and the sum over ranks finds it."""

    def __init__(self, whole: nn.Embedding, degree: int, group: dist.ProcessGroup):
        super().__init__()
        self.weight = _slice(whole.weight, 0, degree)
        self._group = group

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        own = tokens - self._group.rank() * rows
        elsewhere = (own < 0) | (own >= rows)
        x = F.embedding(own.masked_fill(elsewhere, 0), self.weight)
        return _SumOverGroup.apply(x.masked_fill(elsewhere.unsqueeze(-1), 0.0), self._group)


class HeadLinear(ColumnLinear):
    """A column layer on its own: its input's gradient is summed and its outputs are gathered."""

    def __init__(self, whole: nn.Linear, degree: int, group: dist.ProcessGroup):
        super().__init__(whole, degree)
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        return _GatherFromGroup.apply(super().forward(_CopyToGroup.apply(x, self._group)), self._group)


@dataclass(frozen=True)
class Strategy(TensorParallel):
    """Column and row pairs with plain tensors and plain collectives; no knobs."""

    def shard(self, assembly: Assembly, plan: Mapping[str, str], world: World) -> Assembly:
        group, degree = world.group("tp"), world.degrees["tp"]
        make = {
            "column": lambda whole: ColumnLinear(whole, degree),
            "row": lambda whole: RowLinear(whole, degree, group),
            "vocabulary": lambda whole: VocabularyEmbedding(whole, degree, group),
            "head": lambda whole: HeadLinear(whole, degree, group),
        }
        for part in assembly.parts:
            shared = shared_names(part.module)
            for name, style in plan.items():
                if style == "region":
                    region = part.module.get_submodule(name)
                    region.register_forward_pre_hook(lambda _, inputs: (_CopyToGroup.apply(inputs[0], group), *inputs[1:]))
                else:
                    part.module.set_submodule(name, make[style](part.module.get_submodule(name)))
                    for parameter, dimension in _cut_dimensions(name, style, part).items():
                        part.placements[parameter] = part.placements[parameter].sharded("tp", dimension)
            tie_again(part.module, shared)
        return assembly


def _slice(parameter: nn.Parameter, dimension: int, degree: int) -> nn.Parameter:
    """A meta parameter of a rank's share of the shape."""
    shape = list(parameter.shape)
    shape[dimension] //= degree
    return nn.Parameter(torch.empty(shape, device="meta", dtype=parameter.dtype))


def _cut_dimensions(name: str, style: str, part: Part) -> dict[str, int]:
    """Parameter name -> the dimension that is cut; the bias of a row layer is not."""
    if style == "row":
        return {f"{name}.weight": 1}
    return {f"{name}.{own}": 0 for own in ("weight", "bias") if f"{name}.{own}" in part.placements}
