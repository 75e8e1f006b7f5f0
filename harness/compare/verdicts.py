"""Verdicts on two groups of runs: cells are matched by id, exact metrics compared exactly, times by their shift.

Memory, losses and counts of collectives do not vary from run to run where nothing changed, so a single run can tell: any
difference is a finding in both directions (`harness.compare.exact`). Times are told apart by their shift over several runs
(`harness.compare.shift`).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.cell import Cell
from harness.compare.exact import IDENTICAL, Values, against, aligned, bounds, exact_values, held, of_training, written
from harness.compare.shift import FEWEST_RUNS, judge
from harness.record import Record
from harness.report.words import STATUS_WORDS, amount
from harness.table import techniques

Word = Literal["regressed", "improved", "stable", "inconclusive", "errored", "missing baseline", "not comparable"]

TIME = "step_seconds"
LOUD: tuple[Word, ...] = ("regressed", "errored", "improved", "missing baseline", "not comparable", "inconclusive")
"""What is told one by one, in this order; what is stable is only counted."""
MEANINGS = {
    0: "nothing regressed",
    1: "there are regressions, errors or changed exact metrics",
    2: "it cannot be told for all cells",
}
"""Exit status -> what it says."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is known beside the runs."""

    spreads: Mapping[str, float] = field(default_factory=dict)
    """Cell id -> its run-to-run spread as calibrated on this machine."""
    differences: str = ""
    """In what the environments of base and head differ, in words."""
    environments_may_differ: bool = False
    """For runs that were made in turn on one machine, whose software is what is compared."""
    looking: bool = False
    """Whether runs are added until the verdict is clear; see `again` of `harness.compare.shift.judge`."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is said of one metric of one cell; `metric` is empty where the whole cell is meant."""

    cell_id: str
    name: str
    """Model, layout and technique, for people."""
    metric: str
    word: Word
    exact: bool = False
    """Whether the metric is an exact one, in which an improvement is as unexpected as a regression."""
    why: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All verdicts, in the order of the base's cells."""

    verdicts: tuple[Verdict, ...]
    without_figures: Mapping[str, int]
    """Cells that ended alike without a figure on both sides, by status."""
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """1: something regressed, errored, or an exact metric changed; 2: not all could be told; 0: all is well."""
        if any(v.word in ("regressed", "errored") or (v.word == "improved" and v.exact) for v in self.verdicts):
            return 1
        unknown = any(v.word in ("inconclusive", "missing baseline", "not comparable") for v in self.verdicts)
        return 2 if unknown or not self.verdicts else 0


def compare_runs(
    base_runs: Sequence[Sequence[Record]], head_runs: Sequence[Sequence[Record]], terms: Terms | None = None
) -> Comparison:
    """Compare the head's runs with the base's.

    Args:
        base_runs: one or several runs of the state that is compared with, each as its records.
        head_runs: likewise of the state that is judged.
    """
    base, head = _by_cell(base_runs), _by_cell(head_runs)
    verdicts: list[Verdict] = []
    without: Counter[str] = Counter()
    for cell_id in dict.fromkeys([*base, *head]):
        before, after = base.get(cell_id, []), head.get(cell_id, [])
        alike = {record.status for record in before + after}
        if before and after and len(alike) == 1 and "ok" not in alike:
            without[STATUS_WORDS[before[0].status]] += 1
        else:
            verdicts += _of_cell(before, after, terms or Terms())
    return Comparison(verdicts=tuple(verdicts), without_figures=dict(without), notes=tuple(_notes(base_runs, head_runs)))


def _by_cell(runs: Sequence[Sequence[Record]]) -> dict[str, list[Record]]:
    """Cell id -> its record in each run that has one; of a cell that a resumed run tried again, the last."""
    found: dict[str, list[Record]] = {}
    for run in runs:
        for record in {record.cell_id: record for record in run}.values():
            found.setdefault(record.cell_id, []).append(record)
    return found


def _of_cell(base: list[Record], head: list[Record], terms: Terms) -> list[Verdict]:
    first = (base or head)[0]
    about = {"cell_id": first.cell_id, "name": title(first.cell)}
    if not head:
        return [Verdict(**about, metric="", word="not comparable", why="head has no record of it")]
    if not base:
        return [Verdict(**about, metric="", word="missing baseline", why="base has no record of it")]
    machines = [sorted({record.environment_id for record in side}) for side in (base, head)]
    if max(map(len, machines)) > 1 or (machines[0] != machines[1] and not terms.environments_may_differ):
        why = f"machine or software differ: {terms.differences or ' against '.join(' and '.join(side) for side in machines)}"
        return [Verdict(**about, metric="", word="not comparable", why=why)]
    ended = next((record for record in head if record.status != "ok"), None)
    begun = next((record for record in base if record.status != "ok"), None)
    if begun and not ended:
        return [
            Verdict(**about, metric="", word="missing baseline", why=f"base {STATUS_WORDS[begun.status]}, head has figures")
        ]
    if ended:
        before = "base has figures" if not begun else f"base {STATUS_WORDS[begun.status]}"
        why = f"head {STATUS_WORDS[ended.status]}, {before}: {ended.reason or 'no reason was recorded'}"
        return [Verdict(**about, metric="", word="errored", why=why)]
    values = aligned([exact_values(record) for record in base + head])
    if machines[0] != machines[1]:  # each side was held to its own single device; other kernels round otherwise
        values = [{metric: value for metric, value in run.items() if not of_training(metric)} for run in values]
    exact = [Verdict(**about, exact=True, **found) for found in _exact(values[: len(base)], values[len(base) :])]
    return [*exact, Verdict(**about, **_time(base, head, terms))]


def title(cell: Cell) -> str:
    """A cell for people: model, layout and techniques."""
    return f"{cell.model} {cell.layout} {techniques(cell)}"


def _exact(base: list[Values], head: list[Values]) -> list[dict]:
    """One entry per metric: its name, verdict and reason."""
    found = []
    for metric in dict.fromkeys(name for run in base + head for name in run):
        if not all(metric in run for run in base + head):
            known = all(metric in run for run in base)
            word, side = ("errored", "head") if known else ("missing baseline", "base")
            found.append({"metric": metric, "word": word, "why": f"not measured in {side}"})
            continue
        low, high = bounds(base, metric)
        least, most = bounds(head, metric)
        word, farthest = against(low, high, least, most)
        why = f"{held(low, high)} -> {written(farthest)}"
        if word != "stable" and len(base) < IDENTICAL and least != most:
            word, why = "inconclusive", f"{why}; head's own runs differ: give {IDENTICAL} runs of base or more"
        found.append({"metric": metric, "word": word, "why": why})
    return found


def _time(base: list[Record], head: list[Record], terms: Terms) -> dict:
    before = [statistics.median(r.samples.step_seconds) for r in base if r.samples.step_seconds]
    after = [statistics.median(r.samples.step_seconds) for r in head if r.samples.step_seconds]
    if not before or not after:
        return {"metric": TIME, "word": "missing baseline" if not before else "errored", "why": "no timed steps"}
    known = terms.spreads.get(base[0].cell_id)
    shift = judge(before, after, known=known, again=terms.looking and known is None)
    figures = f"{amount(statistics.median(before), 's')} -> {amount(statistics.median(after), 's')} ({shift.change:+.1%})"
    if min(len(before), len(after)) < FEWEST_RUNS:
        runs = f"{len(before)} against {len(after)} run{'s' if len(after) > 1 else ''}"
        return {"metric": TIME, "word": shift.word, "why": f"{figures}; {runs}: give {FEWEST_RUNS} or more on each side"}
    return {"metric": TIME, "word": shift.word, "why": f"{figures}; p = {shift.p:.2g}, changes over {shift.needed:.1%} count"}


def _notes(base_runs: Sequence[Sequence[Record]], head_runs: Sequence[Sequence[Record]]) -> list[str]:
    """What weakens the comparison as a whole."""
    times = [sorted(record.time for run in runs for record in run) for runs in (base_runs, head_runs)]
    if len(base_runs) > 1 and all(times) and (times[0][-1] < times[1][0] or times[1][-1] < times[0][0]):
        return ["the runs were not interleaved (A B B A): drift of the machine looks like a change of the times"]
    return []
