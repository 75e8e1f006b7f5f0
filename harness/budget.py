"""A budget of time for a run, and what the cells that have ended say about those that have not. Imports no torch."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Hashable

from benchmarks.cell import Cell
from benchmarks.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600}

_LIKENESS: tuple[Callable[[Cell], Hashable], ...] = (
    lambda cell: (cell.model, cell.layout.family, cell.devices),
    lambda cell: (cell.model, cell.layout.family),
    lambda cell: cell.layout.family,
    lambda cell: cell.model,
    lambda cell: None,
)
"""In what a cell may be like another, the most telling first."""


def parse_budget(text: str) -> float:
    """Seconds of a budget such as `90s`, `30m` or `2h`.

    Raises:
        UsageError: the text has another form, or is no time at all.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"cannot read --budget {text!r}: write a number above 0 and s, m or h, for example 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


class Pace:
    """What cells really take, against what was expected of them before any had run."""

    def __init__(self) -> None:
        self._seen: list[tuple[Cell, float]] = []

    def learn(self, cell: Cell, expected: float, spent: float) -> None:
        """A cell has ended, `spent` seconds after it began."""
        if expected > 0:
            self._seen.append((cell, spent / expected))

    def seconds(self, cell: Cell, expected: float) -> float:
        """What a cell will take: what was expected, times the median of how far off that was for the cells most like it."""
        for likeness in _LIKENESS:
            ratios = [ratio for seen, ratio in self._seen if likeness(seen) == likeness(cell)]
            if ratios:
                return expected * statistics.median(ratios)
        return expected
