"""The order of a gate's runs and when it stops: A B, B A, A B, ..., until each cell is clear. Pure, but for what it is given.

In each pair the other side begins, so that a machine that grows slower or faster favours neither. A cell whose verdict is
clear after the fewest pairs is measured no more. Looking again after every pair gives chance more than one try; what keeps
false alarms rare nevertheless is the least change that counts, of which see `harness.compare.shift.judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.cell import Cell
from harness.compare.verdicts import Comparison, Terms, Verdict, compare_runs
from harness.record import Record

NAMES = ("base", "head")

Measure = Callable[[str, int, Sequence[Cell] | None], list[Record]]
"""Runs the suite, or only these cells, on a side, for the n-th time; gives its records."""


def settle(
    measure: Measure,
    terms: Callable[[], Terms],
    *,
    pairs: int,
    most: int,
    progress: Callable[[int, int], None] = lambda pair, cells: None,
) -> Comparison:
    """Measure in pairs until the verdict on each cell is clear, or `most` pairs were measured.

    Args:
        terms: asked once both sides have a run.
        pairs: before so many no verdict is looked at.
        progress: told after each pair its number and how many cells are not clear.
    """
    records: dict[str, dict[str, list[Record]]] = {name: {} for name in NAMES}
    judged: dict[str, list[Verdict]] = {}
    without: dict[str, int] = {}
    cells: list[Cell] | None = None
    for pair in range(1, most + 1):
        for name in NAMES if pair % 2 else reversed(NAMES):
            for record in measure(name, pair, cells):
                records[name].setdefault(record.cell_id, []).append(record)
        if pair < min(pairs, most):
            progress(pair, len(records["base"]))
            continue
        still = None if cells is None else {cell.id for cell in cells}
        comparison = compare_runs(*(_runs(records[name], still) for name in NAMES), terms())
        for cell_id in {verdict.cell_id for verdict in comparison.verdicts}:
            judged[cell_id] = [verdict for verdict in comparison.verdicts if verdict.cell_id == cell_id]
        without = without or dict(comparison.without_figures)
        cells = _not_clear(judged, records)
        progress(pair, len(cells))
        if not cells:
            break
    order = dict.fromkeys([*records["base"], *records["head"]])
    verdicts = tuple(verdict for cell_id in order for verdict in judged.get(cell_id, []))
    return Comparison(verdicts=verdicts, without_figures=without, notes=_notes(terms()))


def _runs(records: dict[str, list[Record]], cells: set[str] | None) -> list[list[Record]]:
    """The records of some cells, or of all, as runs again."""
    chosen = [found for cell_id, found in records.items() if cells is None or cell_id in cells]
    return [[found[i] for found in chosen if i < len(found)] for i in range(max(map(len, chosen), default=0))]


def _not_clear(judged: dict[str, list[Verdict]], records: dict[str, dict[str, list[Record]]]) -> list[Cell]:
    """Cells with a metric of which more runs could tell more; one that failed or is missing on a side is as clear as it
    gets."""
    return [
        records["base"][cell_id][0].cell
        for cell_id, verdicts in judged.items()
        if cell_id in records["base"] and any(verdict.word == "inconclusive" for verdict in verdicts)
    ]


def _notes(terms: Terms) -> tuple[str, ...]:
    if not terms.differences:
        return ()
    return (
        f"the environments differ: {terms.differences}; losses and norms, which each side's verification checked, do not count",
    )
