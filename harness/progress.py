"""One line on standard error for each cell, with the time that is left; and the clock of the budget. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from harness.budget import Pace
from harness.plan import Planned
from harness.record import Record
from harness.report.words import STATUS_WORDS, amount
from harness.table import duration, techniques


class Progress:
    """How a run goes.

    Args:
        count: cells that are to run.
        budget: seconds for all of them; None: what they need.
        clock: gives seconds.
        whole_lines: say nothing of a cell before it has ended, as others may end meanwhile.
    """

    def __init__(self, count: int, pace: Pace, budget: float | None, clock: Callable[[], float], *, whole_lines: bool = False):
        self.ended = 0
        """Cells that have a record."""
        self._count, self._pace, self._budget, self._clock, self._whole_lines = count, pace, budget, clock, whole_lines
        self._number = self._passed = 0
        self._waiting: Sequence[Planned] = ()
        self._started = clock()
        self._begun: dict[str, tuple[str, float]] = {}

    def fits(self, planned: Planned) -> bool:
        """Whether the cell is expected to end within the budget; one that is not is passed over."""
        if self._budget is None:
            return True
        fits = self._clock() - self._started + self._expected(planned) <= self._budget
        self._passed += not fits
        return fits

    def begin(self, planned: Planned, waiting: Sequence[Planned]) -> None:
        """A cell begins, and these are still to come."""
        self._number += 1
        self._waiting = waiting
        cell = planned.cell
        place = f"{self._number + self._passed:{len(str(self._count))}}/{self._count}"
        text = f"[{place}] {cell.model} {cell.layout} {techniques(cell)} ... "
        self._begun[cell.id] = (text, self._clock())
        if not self._whole_lines:
            print(text, end="", file=sys.stderr, flush=True)

    def end(self, planned: Planned, record: Record) -> None:
        """Its record is kept."""
        now = self._clock()
        text, begun = self._begun.pop(planned.cell.id)
        self.ended += 1
        self._pace.learn(planned.cell, planned.seconds, now - begun)
        coming: list[float] = []
        for p in self._waiting:
            seconds = self._expected(p)
            if self._budget is None or now - self._started + sum(coming) + seconds <= self._budget:
                coming.append(seconds)
        step = record.metrics.get("step_seconds")
        figure = f", {amount(step.value, step.unit)} a step" if step else ""
        left = f"; about {duration(sum(coming))} left" if coming else ""
        shown = text if self._whole_lines else ""
        print(f"{shown}{STATUS_WORDS[record.status]}{figure}{left}", file=sys.stderr, flush=True)

    def _expected(self, planned: Planned) -> float:
        return self._pace.seconds(planned.cell, planned.seconds)
