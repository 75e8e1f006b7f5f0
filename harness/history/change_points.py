"""Where a series of figures changed its level: pure functions, each with its formula and where it comes from.

The method is that of Hunter (Fleming, Kolaczkowski and others, ICPE 2023, doi 10.1145/3578244.3583719), as Apache Otava has
it: candidates by divisive segmentation with the energy distance (Matteson and James, Journal of the American Statistical
Association 109, 2014, "E-Divisive"), which asks nothing of the distribution; a Student's t test in place of permutations,
which judges short segments and gives the same answer each time; then candidates are merged until each that is left is certain
and large enough.

It is written out here as Otava itself (0.8.0) can only be installed with one version of numpy, an older scipy, and the
clients of three databases; the tests hold its answers against this module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

LARGEST_P = 1e-4
LEAST_CHANGE = 0.02
"""A relative change below this is no finding, however certain."""
WINDOW = 50
"""Points among which a candidate is looked for at a time, so that a change is not drowned in a long past."""
RELAXED = 10
"""By how much a candidate's p may be larger at first: neighbours that are merged away make it smaller."""


class ChangePoint(NamedTuple):
    """A change of level."""

    index: int
    """Of the first point on the new level."""
    before: float
    """Mean of the segment that ends there."""
    after: float
    """Mean of the segment that begins there."""
    p: float
    """Two-sided, of Student's t test between these segments."""

    @property
    def change(self) -> float:
        """Relative; above 0: it grew."""
        return self.after / self.before - 1 if self.before else float("inf")


def change_points(
    series: Sequence[float], *, largest_p: float = LARGEST_P, least_change: float = LEAST_CHANGE
) -> list[ChangePoint]:
    """The points at which the level of a series changed, in order.

    Args:
        series: figures, none of which is missing.
    """
    values = np.asarray(series, dtype=float)
    found: set[int] = set()
    start = 0
    while start < len(values):
        end = min(start + WINDOW, len(values))
        inside = _split(values[start:end], largest_p * RELAXED)
        found |= {start + index for index in inside}
        start = max(start + WINDOW // 2, *(start + index for index in inside), 0)
    return _merged(values, sorted(found), largest_p, least_change)


def energy(values: np.ndarray) -> np.ndarray:
    """For each split of n values into the first t and the rest, how far apart the two lie, t = 1 ... n - 1.

    Q(t) = t (n - t) / n * (2 mean|x - y| - mean|x - x'| - mean|y - y'|), x and x' among the first, y and y' among the rest,
    means over pairs of different members (Matteson and James 2014, equations 5 to 7, with alpha = 1).
    """
    n = len(values)
    distance = np.abs(values[:, None] - values[None, :])
    cumulated = distance.cumsum(axis=0).cumsum(axis=1)
    t = np.arange(1, n)
    first = cumulated[t - 1, t - 1]
    across = cumulated[t - 1, n - 1] - first
    rest = cumulated[n - 1, n - 1] - 2 * across - first
    m = n - t

    def mean(total: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        return np.divide(total, pairs, out=np.zeros(n - 1), where=pairs > 0)

    return t * m / n * (2 * across / (t * m) - mean(first, t * (t - 1)) - mean(rest, m * (m - 1)))


def t_test_p(one: np.ndarray, other: np.ndarray) -> float:
    """Two-sided p that two groups have the same mean, with a common variance (Student 1908).

    t = (mean' - mean) / sqrt(s^2 (1/n + 1/n')), s^2 = (sum of squares about either mean) / (n + n' - 2). One of the groups
    may be a single value. Groups that do not vary at all differ for certain, or not at all.
    """
    n, m = len(one), len(other)
    if n + m < 3:
        return 1.0
    apart = float(np.mean(other) - np.mean(one))
    squares = float(np.sum((one - np.mean(one)) ** 2) + np.sum((other - np.mean(other)) ** 2))
    if squares <= (1e-12 * float(np.mean(one))) ** 2:  # the rounding of the means themselves
        return 0.0 if abs(apart) > 1e-9 * abs(float(np.mean(one))) else 1.0
    t = apart / np.sqrt(squares / (n + m - 2) * (1 / n + 1 / m))
    return float(2 * stdtr(n + m - 2, -abs(t)))


def _split(values: np.ndarray, largest_p: float) -> list[int]:
    """Candidates: the segment whose best split is farthest apart is split there, as long as the split is certain."""
    edges = [0, len(values)]
    while True:
        best: tuple[float, int, int, int] | None = None
        for start, end in zip(edges, edges[1:], strict=False):
            if end - start < 2:
                continue
            apart = energy(values[start:end])
            at = int(np.argmax(apart))
            if best is None or apart[at] > best[0]:
                best = (float(apart[at]), start, start + at + 1, end)
        if best is None or best[0] <= 0:
            return edges[1:-1]
        _, start, at, end = best
        if t_test_p(values[start:at], values[at:end]) > largest_p:
            return edges[1:-1]
        edges = sorted([*edges, at])


def _merged(values: np.ndarray, candidates: list[int], largest_p: float, least_change: float) -> list[ChangePoint]:
    """Take away the least certain, then the smallest, until all that is left is certain and large."""
    left = list(candidates)
    while left:
        found = _tested(values, left)
        doubtful = max(found, key=lambda point: point.p)
        if doubtful.p > largest_p:
            left.remove(doubtful.index)
            continue
        smallest = min(found, key=lambda point: abs(point.change))
        if abs(smallest.change) >= least_change:
            return found
        left.remove(smallest.index)
    return []


def _tested(values: np.ndarray, indices: Sequence[int]) -> list[ChangePoint]:
    edges = [0, *indices, len(values)]
    found = []
    for start, at, end in zip(edges, edges[1:], edges[2:], strict=False):
        one, other = values[start:at], values[at:end]
        found.append(ChangePoint(at, float(np.mean(one)), float(np.mean(other)), t_test_p(one, other)))
    return found
