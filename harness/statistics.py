"""Figures from samples: pure functions, each with its formula and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 2000


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two in the middle."""
    return float(np.median(samples))


def bootstrap_interval(
    samples: Sequence[float], statistic: Callable[..., np.ndarray] = np.median, *, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).

    The samples are drawn anew, with replacement, `RESAMPLES` times; the interval holds the middle `level` of the
    statistic's values. It tells the spread of steps within one run and knows nothing of the spread between runs.

    Args:
        statistic: of arrays, along `axis`.
    """
    values = np.asarray(samples, dtype=float)
    draw = np.random.default_rng(seed)
    rows = max(1, 1_000_000 // len(values))  # at a time, so that long runs do not need much memory
    found = [
        statistic(values[draw.integers(0, len(values), (min(rows, RESAMPLES - begun), len(values)))], axis=1)
        for begun in range(0, RESAMPLES, rows)
    ]
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def steady(samples: Sequence[float], *, window: int = 5, tolerance: float = 0.02) -> bool:
    """Whether the median of the last `window` samples moved by under `tolerance` from that of the `window` before."""
    if len(samples) < 2 * window:
        return False
    return movement(samples, window=window) < tolerance


def movement(samples: Sequence[float], *, window: int = 5) -> float:
    """By which fraction the median of the last `window` samples differs from that of the `window` before."""
    before, last = median(samples[-2 * window : -window]), median(samples[-window:])
    return abs(last - before) / before


def largest_of_ranks(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """For every step the largest time of any rank.

    Args:
        per_rank: rank -> step -> seconds.
    """
    return [max(times) for times in zip(*per_rank, strict=True)]
