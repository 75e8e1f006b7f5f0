"""Statistics against values worked out by hand or by theory."""

from __future__ import annotations

import numpy as np
import pytest

from harness.statistics import bootstrap_interval, largest_of_ranks, median, movement, steady


def test_the_median_is_the_middle_or_the_mean_of_the_two_in_the_middle() -> None:
    assert median([3.0, 1.0, 10.0]) == 3.0
    assert median([4.0, 1.0, 2.0, 10.0]) == 3.0


def test_equal_samples_have_no_spread() -> None:
    assert bootstrap_interval([2.5] * 7) == (2.5, 2.5)


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    # 400 samples, half 0 and half 2: the mean is 1, its standard error 1 / sqrt(400) = 0.05, so 95 % is 1 +- 0.098.
    low, high = bootstrap_interval([0.0, 2.0] * 200, np.mean)
    assert low == pytest.approx(1 - 0.098, abs=0.01)
    assert high == pytest.approx(1 + 0.098, abs=0.01)


def test_the_interval_of_three_samples_median_by_counting() -> None:
    # A resample of {1, 2, 3} has the median 1 with probability 7/27 = 0.26 (two or three ones), far above 2.5 %: the
    # interval spans all.
    assert bootstrap_interval([1.0, 2.0, 3.0]) == (1.0, 3.0)


def test_the_same_samples_give_the_same_interval() -> None:
    samples = list(np.random.default_rng(1).normal(size=50))
    assert bootstrap_interval(samples) == bootstrap_interval(samples)


def test_long_runs_are_resampled_in_pieces() -> None:
    # The standard error of a normal sample's median is 1.253 / sqrt(1200) = 0.036, so the interval is about 0.14 wide.
    low, high = bootstrap_interval(list(np.random.default_rng(2).normal(size=1200)))
    assert 0.07 < high - low < 0.28


def test_step_times_are_steady_when_the_median_of_five_moves_by_under_two_percent() -> None:
    assert not steady([1.0] * 9)
    assert steady([1.0] * 5 + [1.019] * 5)
    assert not steady([1.0] * 5 + [1.021] * 5)
    assert steady([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0])  # one slow step does not matter
    assert movement([2.0] * 5 + [1.0] * 5) == 0.5


def test_a_step_is_as_slow_as_its_slowest_rank() -> None:
    assert largest_of_ranks([[1.0, 5.0], [2.0, 3.0]]) == [2.0, 5.0]
