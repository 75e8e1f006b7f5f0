"""Pipelines whose processes hold several stages, in an order that torch lays down as a list of actions for each process.

Cut into v stages a process, a pipeline of N processes has v * N shorter stages: the first microbatch reaches the last
process after N short stages, so the bubble falls to 1/v, and activations cross between processes v times as often.

An action is a forward `F`, a whole backward `B`, or, where backward is split, the gradients of a stage's input `I` and of its
weights `W` (Qi et al., Zero Bubble Pipeline Parallelism, 2024): only `I` keeps the stage before waiting, and `W` fills what
would be a bubble. Autograd's hooks on parameters do not fire for `W`, and with checkpointing `I` and `W` each repeat the
forward, as both start from what it kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from benchmarks.cell import Cell
from benchmarks.contract import SPLITS_BACKWARD, Model
from benchmarks.errors import UsageError
from benchmarks.pipeline_parallel._torch_schedule import TorchPipeline
from benchmarks.site import Site

Order = tuple[tuple[tuple[int, str], ...], ...]
"""For each process its actions in order: (stage, `F`, `B`, `I` or `W`)."""


class SeveralStages(TorchPipeline):
    """A pipeline whose order is one of torch's schedules for several stages on each process."""

    kind: ClassVar[type[PipelineScheduleMulti]]

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return super().traits(cell, model) | (frozenset({SPLITS_BACKWARD}) if self.splits(cell) else frozenset())

    def splits(self, cell: Cell) -> bool:
        """Whether input and weight gradients are computed apart anywhere."""
        return any(action == "W" for actions in self.order(cell) or () for _, action in actions)

    def order(self, cell: Cell) -> Order | None:
        """What each process does; None where torch refuses, for a reason that `unsupported` gives."""
        try:
            return _order(self, tuple(map(tuple, self.placement(cell))), cell.batch.microbatches)
        except (ValueError, AssertionError, RuntimeError):
            return None

    def ordered(self, stages: Sequence[Any], microbatches: int, **options: Any) -> Any:
        return self.kind(list(stages), microbatches, **options)

    def in_flight(self, cell: Cell, model: Model, stage: int) -> int:
        (held,) = (actions for actions in self.order(cell) if any(found == stage for found, _ in actions))
        return fullest(held)[stage]

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        placement, microbatches = tuple(map(tuple, self.placement(cell))), cell.batch.microbatches
        try:
            _order(self, placement, microbatches)
        except (ValueError, AssertionError, RuntimeError) as error:
            return (
                f"torch's {self.kind.__name__} refuses {microbatches} microbatches on {sum(map(len, placement))} stages: "
                f"{str(error).splitlines()[0].rstrip('.')} (torch/distributed/pipelining/schedules.py)"
            )
        return None


@dataclass(frozen=True)
class Looped(SeveralStages):
    """Stages go round the processes: process r of N holds stages r, r + N, r + 2 N, ..."""

    stages_each: int = 2
    """Stages that each process holds."""

    def __post_init__(self) -> None:
        if self.stages_each < 1:
            raise UsageError(f"stages_each={self.stages_each}: a process holds at least one stage; give 2 or more")

    def placement(self, cell: Cell) -> Sequence[Sequence[int]]:
        degree = cell.layout.degree("pp")
        return [tuple(range(rank, degree * self.stages_each, degree)) for rank in range(degree)]


class Folded(SeveralStages):
    """Stages go down the processes and up again, as a V: process r of N holds stages r and 2 N - 1 - r, so that the first one
    holds both ends of the model, and where the V turns nothing is sent."""

    def placement(self, cell: Cell) -> Sequence[Sequence[int]]:
        degree = cell.layout.degree("pp")
        return [(rank, 2 * degree - 1 - rank) for rank in range(degree)]


def fullest(actions: Iterable[tuple[int, str]]) -> Counter[int]:
    """Stage -> of how many microbatches it holds activations, when its process holds most of them."""
    now: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for stage, action in actions:
        if action == "F":
            now[stage] += 1
            most = now.copy() if now.total() > most.total() else most
        elif action in ("B", "W"):
            now[stage] -= 1
    return most


@cache
def _order(pipeline: SeveralStages, placement: Sequence[Sequence[int]], microbatches: int) -> Order:
    """Ask torch. Raises what it raises where it refuses."""
    count = sum(len(held) for held in placement)
    # All that the order depends on: no process group, no module.
    blank = [
        SimpleNamespace(
            stage_index=index,
            num_stages=count,
            group_size=len(placement),
            group_rank=0,
            submod=nn.Module(),
            is_first=index == 0,
            is_last=index == count - 1,
        )
        for index in placement[0]
    ]
    found = pipeline.ordered(blank, microbatches).pipeline_order
    return tuple(tuple(_plain(found[rank])) for rank in range(len(placement)))


def _plain(actions: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """torch's actions, pairs that are meant to overlap taken apart."""
    for action in actions:
        if action is None:
            continue
        for one in action.sub_actions or (action,):
            yield one.stage_index, one.computation_type.value
