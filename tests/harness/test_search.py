"""The bisection of `batch: max`, on attempts whose limits are known; real memory runs out in `tests/faults`."""

from __future__ import annotations

import pytest

from benchmarks.cell import Cell
from harness.record import Trial
from harness.search import MOST_ROWS, Bisection, sized


def search(largest: int, *, otherwise: str = "oom") -> Bisection:
    def attempt(rows: int) -> Trial:
        return Trial(rows=rows, status="ok" if rows <= largest else otherwise, seconds=1.0)

    return Bisection(attempt)


@pytest.mark.parametrize("largest", [0, 1, 2, 3, 7, 8, 100, MOST_ROWS - 1, MOST_ROWS, 10 * MOST_ROWS])
def test_the_largest_size_that_fits_is_found_in_few_trials(largest: int) -> None:
    bisection = search(largest)
    assert bisection.largest() == min(largest, MOST_ROWS)
    assert len(bisection.trials) <= 2 * 17
    assert len({trial.rows for trial in bisection.trials}) == len(bisection.trials)


def test_the_trials_are_the_evidence() -> None:
    bisection = search(5)
    bisection.largest()
    assert [(t.rows, t.status) for t in bisection.trials] == [
        (1, "ok"),
        (2, "ok"),
        (4, "ok"),
        (8, "oom"),
        (6, "oom"),
        (5, "ok"),
    ]


@pytest.mark.parametrize("status", ["crashed", "timeout"])
def test_a_failure_that_says_nothing_of_memory_ends_the_search(status: str) -> None:
    bisection = search(5, otherwise=status)
    assert bisection.largest() is None
    assert bisection.trials[-1].status == status


def test_a_size_that_fails_after_all_is_searched_below() -> None:
    bisection = search(5)
    assert bisection.largest() == 5
    bisection.reject(Trial(rows=5, status="oom", seconds=1.0))
    assert bisection.largest() == 4


def test_a_sized_cell_is_one_that_could_have_been_asked_for() -> None:
    layout = {"layout": "dp=2", "devices": 2, "processes": 2}
    asked = {**layout, "batch": {"global": 6, "microbatches": 3}, "protocol": {"search": True}}
    same = {**layout, "batch": {"global": 30, "microbatches": 3}}
    assert sized(Cell.model_validate(asked), 5) == Cell.model_validate(same)
