"""The most informative cells first: the order of a run that has a budget. Imports no torch.

The order is the same for the same cells, however they are given:

1. each layout family (`Layout.family`) of each model, once, on its largest world and in the model's usual technique;
2. the single-device cells in those techniques, which the others are held against;
3. the other worlds of each family in the technique of its first cell;
4. all other techniques.

Within each part the models take turns, and of each model the axes, single axes before hybrids: a budget that ends early
has seen something of all of them.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from benchmarks.cell import Cell
from harness.plan import Planned

Technique = tuple[object, ...]

_PLAIN = Cell()


def by_information(planned: Sequence[Planned]) -> list[Planned]:
    """The cells that can run, the most informative first; then those that cannot."""
    possible = sorted((p for p in planned if p.reason is None), key=lambda p: p.cell.canonical())
    usual = _usual(possible)
    first: dict[tuple[str, str], Planned] = {}
    for p in possible:
        family = (p.cell.model, p.cell.layout.family)
        if family not in first or _rank(p.cell, usual) < _rank(first[family].cell, usual):
            first[family] = p
    parts: list[list[Planned]] = [[], [], [], []]
    for p in possible:
        parts[_part(p.cell, first)].append(p)
    refused = [p for p in planned if p.reason is not None]
    return [p for part in parts for p in _in_turns(part, usual)] + refused


def _part(cell: Cell, first: dict[tuple[str, str], Planned]) -> int:
    lead = first[cell.model, cell.layout.family].cell
    if cell.layout.axes:
        if cell.id == lead.id:
            return 0
        return 2 if _technique(cell) == _technique(lead) else 3
    leads = {_technique(p.cell) for (model, _), p in first.items() if model == cell.model}
    return 1 if _technique(cell) in leads else 3


def _technique(cell: Cell) -> Technique:
    batch = cell.batch
    return (cell.precision, cell.checkpointing, cell.offload, cell.compile, cell.clip, batch.microbatches, batch.sequence)


def _usual(possible: Iterable[Planned]) -> dict[str, list[Technique]]:
    """Model -> its techniques, the one of most cells first; of equally many, the one that asks for least."""
    counts: dict[str, Counter[Technique]] = defaultdict(Counter)
    for p in possible:
        counts[p.cell.model][_technique(p.cell)] += 1
    plain = _technique(_PLAIN)
    return {
        model: sorted(c, key=lambda t: (-c[t], sum(a != b for a, b in zip(t, plain, strict=True)), str(t)))  # noqa: B023
        for model, c in counts.items()
    }


def _rank(cell: Cell, usual: dict[str, list[Technique]]) -> tuple[int, int]:
    return (-cell.devices, usual[cell.model].index(_technique(cell)))


def _in_turns(part: Iterable[Planned], usual: dict[str, list[Technique]]) -> list[Planned]:
    """One cell of each model, then the second of each, ...; of each, large worlds and usual techniques first."""
    queues: dict[str, list[Planned]] = defaultdict(list)
    for p in part:
        queues[p.cell.model].append(p)
    sorted_queues = [_axes_in_turns(queues[model], usual) for model in sorted(queues)]
    return [p for turn in itertools.zip_longest(*sorted_queues) for p in turn if p is not None]


def _axes_in_turns(queue: list[Planned], usual: dict[str, list[Technique]]) -> list[Planned]:
    """One of each kind of axes, then the second of each, ...; all those of one axis before those of two."""
    queue = sorted(queue, key=lambda p: (*_rank(p.cell, usual), str(p.cell.layout)))
    turn: Counter[tuple[str, ...]] = Counter()
    turns = {}
    for p in queue:
        axes = tuple(axis.axis for axis in p.cell.layout.axes)
        turns[p.cell.id] = (len(axes), turn[axes])
        turn[axes] += 1
    return sorted(queue, key=lambda p: turns[p.cell.id])
