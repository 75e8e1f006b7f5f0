import pytest

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


def test_spread_of_one_run_is_unknown():
    assert spread([1.0]) == 0
    assert spread([1.0, 3.0]) == pytest.approx(2**0.5 / 2)


@pytest.mark.parametrize(
    ("factor", "word"), [(1.0, "stable"), (1.005, "stable"), (1.1, "regressed"), (0.9, "improved"), (1.015, "inconclusive")]
)
def test_five_against_five(factor, word):
    assert judge(BASE, [factor * seconds for seconds in BASE]).word == word


def test_a_large_spread_of_the_base_asks_for_a_larger_change():
    noisy = [0.9, 0.95, 1.0, 1.05, 1.1]  # spread 7.9 %: changes over 15.8 % count
    shift = judge(noisy, [1.12 + seconds / 100 for seconds in noisy])
    assert shift.needed == pytest.approx(2 * 0.0790569, rel=1e-5) and shift.word == "inconclusive"


@pytest.mark.parametrize("runs", [1, 4])
def test_few_runs_tell_nothing(runs):
    assert judge(BASE[:runs], [10 * seconds for seconds in BASE[:runs]]).word == "inconclusive"
