"""Verdicts on two groups of runs: cells are matched by id, exact metrics compared exactly, times by their shift.

Memory, loss and collective counts do not vary from run to run where nothing changed, so a single run can tell: any
difference is a finding in both directions. Where the base's own runs differ, the head is held to their range.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.compare.shift import FEWEST_RUNS, judge
from harness.record import Record
from harness.report.words import STATUS_WORDS, amount

Word = Literal["regressed", "improved", "stable", "inconclusive", "errored", "missing baseline", "not comparable"]

EXACT_METRICS = ("peak_memory_bytes", "final_loss")
TIME = "step_seconds"


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


def compare_runs(base_runs: Sequence[Sequence[Record]], head_runs: Sequence[Sequence[Record]]) -> Comparison:
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
            verdicts += _of_cell(before, after)
    return Comparison(verdicts=tuple(verdicts), without_figures=dict(without), notes=tuple(_notes(base_runs, head_runs)))


def _by_cell(runs: Sequence[Sequence[Record]]) -> dict[str, list[Record]]:
    """Cell id -> its record in each run that has one; of a cell that a resumed run tried again, the last."""
    found: dict[str, list[Record]] = {}
    for run in runs:
        for record in {record.cell_id: record for record in run}.values():
            found.setdefault(record.cell_id, []).append(record)
    return found


def _of_cell(base: list[Record], head: list[Record]) -> list[Verdict]:
    first = (base or head)[0]
    about = {"cell_id": first.cell_id, "name": f"{first.cell.model} {first.cell.layout} {first.cell.precision}"}
    if not head:
        return [Verdict(**about, metric="", word="not comparable", why="head has no record of it")]
    if not base:
        return [Verdict(**about, metric="", word="missing baseline", why="base has no record of it")]
    machines = {record.environment_id for record in base + head}
    if len(machines) > 1:
        why = f"machine or software differ: environments {', '.join(sorted(machines))}"
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
    exact = [Verdict(**about, exact=True, **found) for found in _exact(_exact_values(base), _exact_values(head))]
    return [*exact, Verdict(**about, **_time(base, head))]


def _exact_values(records: list[Record]) -> list[dict[str, tuple[float, str]]]:
    """For each run: metric -> (value, unit). Collectives are counted by axis and operation."""
    runs = []
    for record in records:
        values = {name: (m.value, m.unit) for name in EXACT_METRICS if (m := record.metrics.get(name))}
        if record.observed:
            for axis, operations in record.observed.collectives.items():
                values |= {f"collectives.{axis}.{name}": (what["count"], "calls") for name, what in operations.items()}
        runs.append(values)
    return runs


def _exact(base: list[dict], head: list[dict]) -> list[dict]:
    """One entry per metric: its name, verdict and reason."""
    found = []
    for metric in dict.fromkeys(name for run in base + head for name in run):
        # A collective that was not called was called 0 times; another metric that is absent was not measured.
        absent = (0, "calls") if metric.startswith("collectives.") else None
        before = [run.get(metric, absent) for run in base]
        after = [run.get(metric, absent) for run in head]
        if None in before or None in after:
            word = "missing baseline" if None in before else "errored"
            found.append({"metric": metric, "word": word, "why": f"not measured in {'base' if None in before else 'head'}"})
            continue
        unit = before[0][1]
        low, high = min(value for value, _ in before), max(value for value, _ in before)
        values = [value for value, _ in after]
        word = "regressed" if max(values) > high else "improved" if min(values) < low else "stable"
        farthest = max(values) if word == "regressed" else min(values) if word == "improved" else values[0]
        held = _written(low, unit) if low == high else f"{_written(low, unit)} to {_written(high, unit)} in its own runs"
        found.append({"metric": metric, "word": word, "why": f"{held} -> {_written(farthest, unit)}"})
    return found


def _written(value: float, unit: str) -> str:
    """Exactly, as a rounded figure may hide the difference that is the finding."""
    exactly = repr(int(value)) if float(value).is_integer() else repr(value)
    return f"{exactly} {unit}" + (f" ({amount(value, unit)})" if unit == "bytes" and value >= 1024 else "")


def _time(base: list[Record], head: list[Record]) -> dict:
    before = [statistics.median(r.samples.step_seconds) for r in base if r.samples.step_seconds]
    after = [statistics.median(r.samples.step_seconds) for r in head if r.samples.step_seconds]
    if not before or not after:
        return {"metric": TIME, "word": "missing baseline" if not before else "errored", "why": "no timed steps"}
    shift = judge(before, after)
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
