"""Budgets: how they are written, and what is learnt from the cells that have ended."""

import pytest

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from harness import run, store
from harness.budget import Pace, parse_budget
from tests.harness.test_run import planned, prepared, record


@pytest.mark.parametrize("text, seconds", [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400)])
def test_a_budget_is_written_with_its_unit(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["30", "m", "30 min", "-1h", "0m", "1h30m"])
def test_any_other_budget_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="write a number above 0 and s, m or h"):
        parse_budget(text)


def test_the_cells_most_like_one_say_how_long_it_takes():
    one = Cell(layout="dp=2:ddp", devices=2)
    wide = Cell(layout="dp=4:ddp", devices=4)
    other_model = Cell(model="gpt2-tiny", layout="dp=2:ddp", devices=2)
    stranger = Cell(model="gpt2-tiny", layout="tp=2:hand", devices=2)
    pace = Pace()
    assert pace.seconds(one, 10) == 10
    pace.learn(other_model, expected=10, spent=30)
    assert pace.seconds(one, 10) == 30  # same layout
    assert pace.seconds(stranger, 10) == 30  # same model
    pace.learn(wide, expected=10, spent=20)
    assert pace.seconds(one, 10) == 20  # same model and layout, another world
    pace.learn(one, expected=10, spent=5)
    pace.learn(one, expected=10, spent=7)
    assert pace.seconds(one, 10) == pytest.approx(6)


class Clock:
    """A cell takes as long as a test says."""

    def __init__(self, *seconds: float):
        self.now, self._left = 100.0, list(seconds)

    def __call__(self) -> float:
        return self.now

    def run_cell(self, cell: Cell):
        self.now += self._left.pop(0)
        return record(cell)


def test_cells_that_would_end_after_the_budget_are_left_out_named_and_resumed(tmp_path, capsys):
    folder = prepared(tmp_path, planned(6, refused=1), seed=None)
    clock = Clock(3, 3)  # three times what was expected: the third would end after 9 s
    assert run.go(folder, clock.run_cell, budget_seconds=8, clock=clock)
    progress = capsys.readouterr().err.splitlines()
    assert progress[0].startswith("[1/5] ") and progress[0].endswith("; about 3 s left")  # one more fits
    assert progress[1].startswith("[2/5] ") and progress[1].endswith(" a step")
    stored = store.read(folder)
    assert [r.status for r in stored.records] == ["skipped", "ok", "ok"]
    assert stored.run["state"] == "budget spent" and stored.run["budget_seconds"] == 8
    recorded = {r.cell_id for r in stored.records}
    assert len(stored.run["left_out"]) == 3 and not recorded & set(stored.run["left_out"])
    assert stored.run["order_seed"] is None
    text = run.closing(folder)
    assert "left out: llama-tiny, fp32: single · single · single" in text
    assert "6 cells: 2 ok, 1 skipped, 3 left out for the budget of 8 s" in text
    assert f"next: hpbench run --resume {folder}" in text
    assert run.exit_status(folder, strict=True) == 0

    assert run.go(folder, Clock(1, 1, 1).run_cell)
    assert store.read(folder).run["left_out"] == [] and len(store.read(folder).records) == 6
    assert "left out" not in run.closing(folder)


def test_a_shorter_cell_still_runs_in_what_is_left(tmp_path):
    from harness.plan import Planned

    cells = [Planned(cell=Cell(seed=s), reason=None, seconds=seconds) for s, seconds in enumerate([5.0, 50.0, 5.0])]
    folder = prepared(tmp_path, cells, seed=None)
    clock = Clock(5, 5)
    run.go(folder, clock.run_cell, budget_seconds=12, clock=clock)
    assert sorted(r.cell.seed for r in store.read(folder).records) == [0, 2]
    assert store.read(folder).run["left_out"] == [cells[1].cell.id]
