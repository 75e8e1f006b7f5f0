"""The run loop: every cell ends with one record, whatever happens in between. Cells are not measured here."""

import pytest

from benchmarks.cell import Cell
from harness import run, store
from harness.plan import Planned
from harness.record import Metric, Record, Verification


def planned(count: int, refused: int = 0) -> list[Planned]:
    return [Planned(cell=Cell(seed=s), reason="it cannot" if s < refused else None, seconds=1.0) for s in range(count)]


def record(cell: Cell, status: str = "ok") -> Record:
    return Record(
        run_id="r",
        cell_id=cell.id,
        time=run.now(),
        environment_id="e",
        cell=cell,
        status=status,
        reason=None if status == "ok" else "rank 1 raised ValueError: no",
        verification=Verification(reference="x", model="llama-tiny", verdict="passed", max_update_error=2e-5),
        metrics={"step_seconds": Metric(value=0.0123, unit="s"), "peak_memory_bytes": Metric(value=3 * 2**20, unit="bytes")},
    )


def prepared(tmp_path, cells: list[Planned], seed: int = 0):
    folder = tmp_path / "run"
    run.prepare(cells, folder, about={"suite": "mine", "arguments": []}, environment={"id": "e"}, seed=seed)
    return folder


def test_every_cell_ends_with_one_record(tmp_path):
    folder = prepared(tmp_path, planned(5, refused=2))
    assert run.go(folder, record)
    records = store.read(folder).records
    assert sorted(r.cell.seed for r in records) == [0, 1, 2, 3, 4]
    assert {r.cell.seed: (r.status, r.reason) for r in records if r.cell.seed < 2} == {
        0: ("skipped", "it cannot"),
        1: ("skipped", "it cannot"),
    }
    assert store.read(folder).run["state"] == "finished"


def test_the_order_is_shuffled_by_a_recorded_seed(tmp_path):
    def order(seed):
        folder = prepared(tmp_path / str(seed), planned(20), seed)
        run.go(folder, record)
        assert store.read(folder).run["order_seed"] == seed
        return [r.cell.seed for r in store.read(folder).records]

    assert order(1) != order(2) != list(range(20))
    again = prepared(tmp_path / "again", planned(20), 1)
    assert [c["cell"]["seed"] for c in store.read(again).run["cells"]] == order_of(tmp_path / "1")


def order_of(folder):
    return [c["cell"]["seed"] for c in store.read(folder / "run").run["cells"]]


def test_an_interrupted_run_goes_on_with_what_has_no_record(tmp_path, capsys):
    folder = prepared(tmp_path, planned(4, refused=1))
    seen = []

    def interrupted_at_the_second(cell):
        seen.append(cell.seed)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return record(cell)

    assert not run.go(folder, interrupted_at_the_second)
    assert store.read(folder).run["state"] == "interrupted"
    assert f"go on with: hpbench run --resume {folder}" in capsys.readouterr().err
    assert len(store.read(folder).records) == 2
    assert "4 cells: 1 ok, 1 skipped, 2 not yet run" in run.closing(folder)
    assert run.go(folder, record)
    assert sorted(r.cell.seed for r in store.read(folder).records) == [0, 1, 2, 3]
    assert run.go(folder, lambda cell: pytest.fail("no cell is left"))


@pytest.mark.parametrize(
    "status, plain, strict",
    [("ok", 0, 0), ("skipped", 0, 0), ("oom", 0, 1), ("crashed", 1, 1), ("timeout", 1, 1), ("diverged", 1, 1)],
)
def test_exit_status(tmp_path, status, plain, strict):
    folder = prepared(tmp_path, planned(2))
    cells = iter(["ok", status])
    run.go(folder, lambda cell: record(cell, next(cells)))
    assert run.exit_status(folder, strict=False) == plain
    assert run.exit_status(folder, strict=True) == strict


def test_progress_and_closing_table(tmp_path, capsys):
    folder = prepared(tmp_path, planned(3))
    statuses = iter(["ok", "ok", "crashed"])
    run.go(folder, lambda cell: record(cell, next(statuses)))
    progress = capsys.readouterr().err.splitlines()
    assert progress[0].startswith("[1/3] llama-tiny single fp32 ... ok, 12.3 ms a step; about 0 s left")
    assert progress[2].startswith("[3/3] ") and "crashed" in progress[2]
    text = run.closing(folder)
    assert "passed, update error 2.0e-05" in text and "3 MiB" in text
    assert "llama-tiny single: rank 1 raised ValueError: no" in text
    assert "3 cells: 2 ok, 1 crashed" in text
    assert f"records: {folder / 'records.jsonl'}" in text and f"hpbench report {folder}" in text
