"""Whether the times of two groups of runs differ: pure functions, each with its formula and where it comes from.

A sample is one run of a cell (its median step), never a step: the steps of one run are not independent.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache
from math import comb
from typing import Literal, NamedTuple

LEAST_P = 0.005
LEAST_CHANGE = 0.02
"""A relative change below this is no finding, however certain."""
FEWEST_RUNS = 5
"""Runs on each side below which no verdict is given: the smallest p of 4 against 4 is 1/70, of 5 against 5 it is 1/252."""


NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation, 1 / (quantile at 3/4)."""


class Shift(NamedTuple):
    """How the head's times differ from the base's."""

    word: Literal["regressed", "improved", "stable", "inconclusive"]
    change: float
    """Hodges-Lehmann shift over the base's median; above 0: head is slower."""
    p: float
    """One-sided exact Mann-Whitney p in the direction of the change."""
    needed: float
    """The relative change that counts, d."""


def judge(base: Sequence[float], head: Sequence[float], *, known: float | None = None, again: bool = False) -> Shift:
    """The verdict on two groups of runs, lower being better.

    `regressed` or `improved` if p <= 0.005 and |h| > d, `stable` if |h| < d / 2, else `inconclusive`, where h is the relative
    shift and d = max(2 %, twice the run-to-run spread). With fewer than 5 runs on a side: `inconclusive`.

    Args:
        known: the cell's spread as calibrated on this machine. The runs' own spread counts where it is larger, as on a busy
        day. again: a change must hold without the last run of each side, too. For who looks after every pair and does not
        know
            the spread: five runs may agree by chance far better than others would.
    """
    if not base or not head:
        raise ValueError(f"{len(base)} runs against {len(head)}: a shift needs one on each side at least")
    change = hodges_lehmann(base, head) / statistics.median(base)
    p = mann_whitney_p(base, head) if change > 0 else mann_whitney_p(head, base)
    needed = max(LEAST_CHANGE, 2 * max(known or 0.0, spread(base, head)))
    if min(len(base), len(head)) < FEWEST_RUNS:
        word = "inconclusive"
    elif p <= LEAST_P and abs(change) > needed:
        word = "regressed" if change > 0 else "improved"
        if again and judge(base[:-1], head[:-1], known=known).word != word:
            word = "inconclusive"
    else:
        word = "stable" if abs(change) < needed / 2 else "inconclusive"
    return Shift(word, change, p, needed)


def hodges_lehmann(base: Sequence[float], head: Sequence[float]) -> float:
    """The median of all differences head - base (Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963)."""
    return statistics.median(h - b for h in head for b in base)


def mann_whitney_p(low: Sequence[float], high: Sequence[float]) -> float:
    """Exact one-sided p that `high` only seems to be larger than `low` (Mann and Whitney, same Annals 18, 1947).

    U counts the pairs in which `high` is the larger, a tie as half; p is the share of all arrangements of the ranks with
    a U at least as large. With ties, U is rounded down, which makes p larger, never smaller.
    """
    u = int(sum((larger > smaller) + (larger == smaller) / 2 for larger in high for smaller in low))
    n, m = len(low), len(high)
    return sum(_arrangements(n, m, value) for value in range(u, n * m + 1)) / comb(n + m, n)


@cache
def _arrangements(n: int, m: int, u: int) -> int:
    """In how many orders of n low and m high values U is u: the largest value is a high one, above all n, or a low one."""
    if u < 0 or u > n * m:
        return 0
    if n == 0 or m == 0:
        return 1
    return _arrangements(n, m - 1, u - n) + _arrangements(n - 1, m, u)


def spread(*groups: Sequence[float]) -> float:
    """Run-to-run spread, relative: the standard deviation of a normal distribution with the same median absolute deviation.

    s = 1.4826 * median |x / median(its group) - 1| * n / (n - g), over the n runs of all g groups (Rousseeuw and Croux,
    Journal of the American Statistical Association 88, 1993, for the estimator). The last factor makes up for medians that
    are the groups' own. A run that something else slowed down does not widen it, as it would a standard deviation. 0 where no
    group has two runs: nothing is known then.
    """
    groups = tuple(group for group in groups if len(group) > 1)
    if not groups:
        return 0.0
    off = [abs(run / middle - 1) for group in groups for middle in [statistics.median(group)] for run in group]
    return NORMAL * statistics.median(off) * len(off) / (len(off) - len(groups))
