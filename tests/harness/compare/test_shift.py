import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from harness.compare.shift import hodges_lehmann, judge, mann_whitney_p, spread

BASE = [1.000, 1.001, 0.999, 1.002, 0.998]


def test_hodges_lehmann_by_hand():
    # differences 4-1, 4-2, 6-1, 6-2 = 3, 2, 5, 4: median 3.5
    assert hodges_lehmann([1, 2], [4, 6]) == 3.5


def test_mann_whitney_by_hand():
    # 2 against 2, all of one above: one arrangement of 6; all below: every arrangement is at least as large
    assert mann_whitney_p([1, 2], [3, 4]) == pytest.approx(1 / 6)
    assert mann_whitney_p([3, 4], [1, 2]) == 1
    # U = 3 of 4 (only 2 > 1.5 loses): U is 4 in one arrangement and 3 in one
    assert mann_whitney_p([1, 2], [1.5, 3]) == pytest.approx(2 / 6)
    assert mann_whitney_p(range(5), range(5, 10)) == pytest.approx(1 / 252)


def test_ties_never_make_p_smaller():
    assert mann_whitney_p([1, 2], [2, 3]) == pytest.approx(2 / 6)
    assert mann_whitney_p([1, 1], [1, 1]) >= 0.5


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=7, unique=True), st.lists(st.integers(101, 300), min_size=1, max_size=7)
)
def test_mann_whitney_is_that_of_scipy_where_nothing_ties(odd, shifted):
    low, high = [2 * x + 1 for x in odd], sorted({2 * (x - 75) for x in shifted})
    expected = mannwhitneyu(high, low, alternative="greater", method="exact").pvalue
    assert mann_whitney_p(low, high) == pytest.approx(expected)


def test_spread_by_hand():
    assert spread([1.0]) == 0 and spread([1.0], [1.1]) == 0
    # off the median 2 of the only group: 1/2, 0, 1/2, of which the median is 1/2; 3 runs, 1 group
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(1.4826 * 0.5 * 3 / 2)
    # two groups, each off its own median 10 and 20: 0.1, 0, 0.1, 0.05, 0, 0.05 -> 0.05; 6 runs, 2 groups
    assert spread([9.0, 10.0, 11.0], [19.0, 20.0, 21.0]) == pytest.approx(1.4826 * 0.05 * 6 / 4)


def test_spread_of_many_is_the_standard_deviation_and_slow_runs_do_not_widen_it():
    runs = 1 + 0.01 * np.random.default_rng(0).standard_normal(20_000)
    assert spread(runs) == pytest.approx(0.01, rel=0.02)
    runs[::20] *= 1.1
    assert spread(runs) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("factor", "word"), [(1.0, "stable"), (1.005, "stable"), (1.1, "regressed"), (0.9, "improved"), (1.015, "inconclusive")]
)
def test_five_against_five(factor, word):
    assert judge(BASE, [factor * seconds for seconds in BASE]).word == word


def test_a_large_spread_asks_for_a_larger_change():
    shift = judge(BASE, [1.05 * seconds for seconds in BASE], known=0.03)
    assert shift.needed == pytest.approx(0.06) and shift.word == "inconclusive"
    noisy = [0.9, 0.95, 1.0, 1.05, 1.1]  # off by 0.05 in the median, on either side
    shift = judge(noisy, [1.12 * seconds for seconds in noisy], known=0.01)
    assert shift.needed == pytest.approx(2 * 1.4826 * 0.05 * 10 / 8) and shift.word == "inconclusive"


def test_looking_again_a_change_must_hold_without_the_last_run():
    slower = [1.1 * seconds for seconds in BASE]
    assert judge(BASE, slower, again=True).word == "inconclusive"  # four runs tell nothing
    assert judge([*BASE, 1.0], [*slower, 1.1], again=True).word == "regressed"


def test_no_runs_are_an_error():
    with pytest.raises(ValueError, match="0 runs against 5"):
        judge([], BASE)


@pytest.mark.parametrize("runs", [1, 4])
def test_few_runs_tell_nothing(runs):
    assert judge(BASE[:runs], [10 * seconds for seconds in BASE[:runs]]).word == "inconclusive"
