"""Where a level changed: formulas by hand, planted steps, and the answers of Apache Otava."""

import numpy as np
import pytest
from scipy.stats import ttest_ind

from harness.history.change_points import change_points, energy, t_test_p

# fmt: off
OTAVA = [
    [], [94], [37, 147], [90, 114, 126], [], [49], [38, 119], [6, 77, 130], [], [23], [29], [23, 32, 46], [], [150],
    [70, 93], [21, 81, 115], [], [101], [91, 111], [10, 23, 68], [], [20], [10, 91], [32, 152], [], [84], [15, 18], [11,
    36, 44], [], [26], [83, 92], [7, 17, 25], [], [8], [15, 53], [5, 28, 54], [], [111], [], [47, 71, 134], [], [30],
    [54, 80], [20, 36, 57], [], [75], [5, 44], [16, 88], [], [52], [28, 40], [19, 25, 32], [], [56], [81, 85], [10, 43,
    82], [], [52], [73, 127], [26, 51],
]
"""`otava.analysis.compute_change_points(series, window_len=50, max_pvalue=1e-4, min_magnitude=0.02)` of Apache Otava 0.8.0, for
each of the series below."""
# fmt: on


def series() -> list[list[float]]:
    draw, found = np.random.default_rng(5), []
    for case in range(60):
        count, spread = int(draw.integers(30, 200)), [0.003, 0.01, 0.02][case % 3]
        values = draw.normal(1, spread, count)
        for _ in range(case % 4):
            at = int(draw.integers(5, count - 3))
            values[at:] *= 1 + draw.choice([-1, 1]) * draw.uniform(0.03, 0.12)
        found.append(values.round(6).tolist())
    return found


def test_energy_by_hand():
    # 1, 2 | 6: t = 2, n = 3. Across 5 and 4, mean 4.5; among the first 1; among the rest nothing. 2 * 1 / 3 * (9 - 1)
    # 1 | 2, 6: across 1 and 5, mean 3; among the rest 4. 1 * 2 / 3 * (6 - 4)
    assert energy(np.array([1.0, 2.0, 6.0])) == pytest.approx([4 / 3, 16 / 3])


def test_students_p_is_that_of_scipy():
    draw = np.random.default_rng(0)
    for n, m in ((2, 2), (1, 9), (30, 3)):
        one, other = draw.normal(1, 0.01, n), draw.normal(1.02, 0.01, m)
        assert t_test_p(one, other) == pytest.approx(ttest_ind(one, other).pvalue)
    assert t_test_p(np.array([1.0]), np.array([2.0])) == 1
    assert t_test_p(np.full(5, 0.1), np.full(5, 0.1)) == 1 and t_test_p(np.full(5, 0.1), np.full(2, 0.100001)) == 0


def test_nearly_all_answers_are_those_of_otava():
    """Its t test takes the standard deviation of the sample for that of the population, which makes p a little smaller; among
    84 planted and found changes this decides over a few."""
    found = [[point.index for point in change_points(values)] for values in series()]
    assert sum(mine == theirs for mine, theirs in zip(found, OTAVA, strict=True)) >= 57


def test_a_planted_step_is_found_where_it_is():
    values = np.random.default_rng(1).normal(1, 0.005, 200)
    values[137:] *= 1.04
    (point,) = change_points(values)
    assert point.index == 137 and point.change == pytest.approx(0.04, abs=0.003) and point.p < 1e-4


def test_nothing_is_found_where_nothing_is():
    draw = np.random.default_rng(2)
    assert not any(change_points(draw.normal(1, spread, 200)) for spread in (0.003, 0.01) for _ in range(20))


@pytest.mark.parametrize(
    ("values", "indices"),
    [
        ([], []),
        ([1.0], []),
        ([1.0, 2.0], []),
        ([5.0] * 40, []),
        ([5.0] * 20 + [5.2] * 3, [20]),
        ([5.0] * 20 + [5.05] * 20, []),  # certain, and below the 2 % that count
        ([1.0] * 30 + [1.1] * 30 + [1.0] * 30, [30, 60]),
    ],
)
def test_edges(values, indices):
    assert [point.index for point in change_points(values)] == indices
