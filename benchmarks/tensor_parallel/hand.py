"""Tensor parallelism written out: Megatron's pairs of a column and a row cut (Shoeybi et al., Megatron-LM, 2019).

A *column* layer holds some of the outputs of a Linear, a *row* layer some of the inputs. In a pair, the row layer
eats exactly what the column layer on the same rank made, so the middle of the pair is never gathered:

    x (replicated) -> column -> nonlinearity or attention heads -> row -> sum over ranks -> y (replicated)

Forward costs one all-reduce a pair, where the row layers' partial sums meet. Backward costs one too: each rank's column
layers give only their own share of the gradient of x.

With *sequence parallelism* (Korthikanti et al., Reducing Activation Recomputation, 2022) what lies between pairs, norms
and the residual stream, is no longer repeated on every rank: each keeps its share of the tokens.

    x (a share of the tokens) -> gather -> column -> ... -> row -> sum and scatter -> y (a share of the tokens)

An all-reduce is a reduce-scatter followed by an all-gather, so as much is sent as before, and activations between pairs
shrink with the degree. A weight that works on a share of the tokens, such as a norm's, then sees a share of its gradient,
and `Placement.pending` says so: forgotten, the loss is off by 1e-4 and nobody sees it.

With *loss parallelism* the logits stay cut over the vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import Assembly, Part, TensorParallel
from benchmarks.site import Site
from benchmarks.tensor_parallel._collectives import add, copy, gather, gather_partial, scatter_sum, share
from benchmarks.tensor_parallel._cross_entropy import mean_cross_entropy
from benchmarks.tensor_parallel._cuts import note_cut
from benchmarks.tensor_parallel._limits import loss_problem, sequence_problem
from benchmarks.tensor_parallel._on_cpu import caveats
from benchmarks.tied import shared_names, tie_again
from benchmarks.world import World

SEQUENCE = -2
"""The dimension of tokens: before hidden, in (rows, sequence, hidden) and (sequence, hidden)."""


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

    def __init__(self, whole: nn.Linear, degree: int, group: dist.ProcessGroup, sequence: bool):
        super().__init__()
        self.weight = _slice(whole.weight, 1, degree)
        self.bias = whole.bias
        self._group, self._sequence = group, sequence

    def forward(self, x: Tensor) -> Tensor:
        y = _meet(F.linear(x, self.weight), self._group, self._sequence)
        # The bias belongs to the sum: added by every rank before it, it would count degree times.
        return y if self.bias is None else y + self.bias.to(y.dtype)


class VocabularyEmbedding(nn.Module):
    """Some of an Embedding's rows. A token whose row lies elsewhere gives zero here, and the sum over ranks finds it."""

    def __init__(self, whole: nn.Embedding, degree: int, group: dist.ProcessGroup, sequence: bool):
        super().__init__()
        self.weight = _slice(whole.weight, 0, degree)
        self._group, self._sequence = group, sequence

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        own = tokens - self._group.rank() * rows
        elsewhere = (own < 0) | (own >= rows)
        x = F.embedding(own.masked_fill(elsewhere, 0), self.weight)
        return _meet(x.masked_fill(elsewhere.unsqueeze(-1), 0.0), self._group, self._sequence)


@dataclass(frozen=True)
class Strategy(TensorParallel):
    """Column and row pairs with plain tensors and plain collectives."""

    sequence: bool = False
    """Sequence parallelism: between pairs each rank has its share of the tokens."""
    loss: bool = False
    """Loss parallelism: the vocabulary stays cut in the cross entropy."""

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        return (sequence_problem(cell) if self.sequence else None) or (loss_problem(cell) if self.loss else None)

    def shard(self, assembly: Assembly, plan: Mapping[str, str], world: World) -> Assembly:
        group, degree = world.group("tp"), world.degrees["tp"]
        for part in assembly.parts:
            shared = shared_names(part.module)
            for name, style in plan.items():
                module = part.module.get_submodule(name)
                cut = self._cut(style, module, degree, group)
                if cut is not None:
                    part.module.set_submodule(name, cut)
                    note_cut(name, style, part)
                self._communicate(style, part.module.get_submodule(name), group)
                if self.sequence:
                    _await_sums(name, style, part)
            tie_again(part.module, shared)
        changes = {"caveats": caveats(assembly, world)}
        if self.sequence:
            last = assembly.model.units[-1]  # which takes the whole sequence

            def boundary(unit: str, rows: int, sequence: int) -> tuple[int, ...]:
                return assembly.model.boundary(unit, rows, sequence if unit == last else sequence // degree)

            changes["boundary"] = boundary
        if self.loss:
            changes["loss"] = lambda output, target: mean_cross_entropy(output, target, group)
        return dataclasses.replace(assembly, **changes)

    def _cut(self, style: str, whole: nn.Module, degree: int, group: dist.ProcessGroup) -> nn.Module | None:
        """The layer that holds a rank's share of `whole`; None where it stays whole."""
        if style in ("column", "head"):
            return ColumnLinear(whole, degree)
        kind = {"row": RowLinear, "vocabulary": VocabularyEmbedding}.get(style)
        return kind(whole, degree, group, self.sequence) if kind else None

    def _communicate(self, style: str, module: nn.Module, group: dist.ProcessGroup) -> None:
        """Communicate before and after a module what its style says."""
        before = after = None
        if style in ("region", "head"):
            before = (lambda x: gather_partial(x, SEQUENCE, group)) if self.sequence else (lambda x: copy(x, group))
        if style == "whole" and self.sequence:
            before = lambda x: gather(x, SEQUENCE, group)  # noqa: E731
        if style == "head" and not self.loss:
            after = lambda y: gather(y, -1, group)  # noqa: E731
        if style == "lookup" and self.sequence:
            after = lambda y: share(y, SEQUENCE, group)  # noqa: E731
        if before:
            module.register_forward_pre_hook(lambda _, inputs: (before(inputs[0]), *inputs[1:]))
        if after:
            module.register_forward_hook(lambda _, inputs, output: after(output))


def _meet(x: Tensor, group: dist.ProcessGroup, sequence: bool) -> Tensor:
    """The sum of the ranks' partial x: whole on every rank, or this rank's share of the tokens."""
    return scatter_sum(x, SEQUENCE, group) if sequence else add(x, group)


def _slice(parameter: nn.Parameter, dimension: int, degree: int) -> nn.Parameter:
    """A meta parameter of a rank's share of the shape."""
    shape = list(parameter.shape)
    shape[dimension] //= degree
    return nn.Parameter(torch.empty(shape, device="meta", dtype=parameter.dtype))


def _await_sums(name: str, style: str, part: Part) -> None:
    """Mark what works on this rank's share of the tokens: norms, and the biases that row layers add behind the sum."""
    works = {"sequence": ("weight", "bias"), "row": ("bias",)}.get(style, ())
    for parameter in (f"{name}.{own}" for own in works):
        if parameter in part.placements:
            old = part.placements[parameter]
            part.placements[parameter] = dataclasses.replace(old, pending=(*old.pending, "tp"))
