"""A history: nights are added once, changes found at their commit, accepted ones not told again, broken lines named."""

import json

import numpy as np
import pytest

from benchmarks.errors import UsageError
from harness import history
from harness.cli import main
from harness.history.ledger import ACCEPTED, NIGHTS, Night, epochs
from tests.harness.runs import made, stored

CELLS = [f"{number:012x}" for number in range(50)]


def commit(night: int) -> str:
    return f"{night:03x}" + "c" * 37


def kept(folder, nights: int, factor=lambda night, cell: 1.0, cells=CELLS, fingerprint="one", noise=0.005):
    """A history of made-up nights, written directly."""
    draw = np.random.default_rng(0)
    (folder / fingerprint).mkdir(parents=True)
    with (folder / fingerprint / NIGHTS).open("w") as file:
        for night in range(nights):
            seconds = {c: {"step_seconds": draw.normal(1, noise) * factor(night, c), "peak_memory_bytes": 1e6} for c in cells}
            names = {cell: f"cell {cell}" for cell in cells}
            line = Night(time=f"{night}", commit=commit(night), runs=[f"r{night}"], names=names, figures=seconds)
            file.write(line.model_dump_json(by_alias=True) + "\n")
    return folder


def step(at: int, by: float, cell: str = CELLS[7]):
    return lambda night, c: 1 + by if c == cell and night >= at else 1.0


def found(folder) -> list[tuple[str, str, str]]:
    return [(s.cell, change.word, change.commit) for s in history.load(folder) for change in s.changes]


def test_a_step_of_four_percent_among_two_hundred_nights_of_fifty_cells(tmp_path, capsys):
    folder = kept(tmp_path / "h", 200, step(120, 0.04))
    assert main(["history", "check", "--store", str(folder), "--markdown", str(tmp_path / "summary.md")]) == 1
    said = capsys.readouterr().out
    assert found(folder) == [(CELLS[7], "regressed", commit(120))]
    assert commit(120)[:12] in said and commit(119)[:12] in said and "100 series: 1 regressed" in said
    assert "| 🔴 | regressed |" in (tmp_path / "summary.md").read_text()
    accept = ["history", "accept", CELLS[7], "step_seconds", commit(120)[:8], "--store", str(folder)]
    assert main([*accept, "--who", "me", "--why", "worth it"]) == 0
    assert main(["history", "check", "--store", str(folder)]) == 0 and found(folder) == []
    (line,) = (folder / ACCEPTED).read_text().splitlines()
    entry = json.loads(line)
    assert (entry["who"], entry["why"], entry["commit"], entry["night"]) == ("me", "worth it", commit(120), "120")


def test_after_an_accepted_change_the_next_one_is_found(tmp_path):
    def factor(night, cell):
        return 1 + 0.05 * (night >= 40) + 0.06 * (night >= 70)

    folder = kept(tmp_path / "h", 100, factor, cells=CELLS[:1])
    history.accept_change(folder, CELLS[0], "step_seconds", commit(40), "me", "so")
    assert found(folder) == [(CELLS[0], "regressed", commit(70))]


@pytest.mark.parametrize(
    ("nights", "by", "word", "status"),
    [(1, 0.1, "suspect", 0), (2, 0.1, "suspect", 0), (3, 0.1, "regressed", 1), (3, -0.1, "improved", 0)],
)
def test_one_or_two_nights_are_suspect_and_three_an_alarm(tmp_path, capsys, nights, by, word, status):
    folder = kept(tmp_path / "h", 60 + nights, step(60, by), cells=CELLS[7:8])
    assert found(folder) == [(CELLS[7], word, commit(60))]
    assert history.check(folder) == status and word in capsys.readouterr().out


def test_another_machine_is_another_epoch(tmp_path):
    folder = kept(tmp_path / "h", 30, cells=CELLS[:1])
    kept(folder, 30, lambda night, cell: 1.5, cells=CELLS[:1], fingerprint="two")
    assert found(folder) == [] and set(epochs(folder)) == {"one", "two"}


def test_the_runs_of_a_night_are_added_once_as_their_medians(tmp_path, capsys):
    folder = tmp_path / "h"
    crashed = made("tp=2:hand", status="crashed")
    runs = [str(stored(tmp_path / f"run{i}", made(seconds=s), crashed)) for i, s in enumerate((1, 3, 2))]
    assert main(["history", "add", *runs, "--store", str(folder), "--commit", "abc"]) == 0
    (night,) = epochs(folder)["one"]
    assert night.commit == "abc" and night.figures == {made().cell_id: {"step_seconds": 2.0, "peak_memory_bytes": 1000.0}}
    assert json.loads((folder / "one" / "environment.json").read_text())["processor"] == "Made Up 9000"
    assert main(["history", "add", runs[0], "--store", str(folder)]) == 2
    assert "is in" in capsys.readouterr().err and len(epochs(folder)["one"]) == 1
    assert main(["history", "check", "--store", str(folder)]) == 2


def test_what_cannot_be_added(tmp_path):
    here, there = stored(tmp_path / "a", made()), stored(tmp_path / "b", made(), id="two")
    unknown = stored(tmp_path / "c", made(), suite_commit=None)
    for runs, said in (([here, there], "several machines"), ([unknown], "by --commit")):
        with pytest.raises(UsageError, match=said):
            history.add_runs(tmp_path / "h", runs, None)
    assert not (tmp_path / "h").exists()


def test_broken_lines_are_named(tmp_path, capsys):
    folder = kept(tmp_path / "h", 3, cells=CELLS[:1])
    path = folder / "one" / NIGHTS
    whole = path.read_text()
    for text, said in (
        (whole[:-20], "line 3 of"),
        (whole.replace('"schema":1', '"schema":2', 1), "line 1 of"),
        (whole.replace('"commit"', '"comit"', 1), "line 1 of"),
        (whole.replace("{", "[", 1), "line 1 of"),
    ):
        path.write_text(text)
        assert main(["history", "check", "--store", str(folder)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_mistakes(tmp_path, capsys):
    folder = kept(tmp_path / "h", 5, cells=CELLS[:2])
    for arguments, said in (
        (["check", "--store", str(tmp_path / "none")], "holds no history"),
        (["accept", CELLS[0], "loss", "x", "--store", str(folder)], "unknown metric 'loss'"),
        (["accept", "zzz", "step_seconds", "x", "--store", str(folder)], "unknown cell 'zzz'"),
        (["accept", "0", "step_seconds", "x", "--store", str(folder)], "several cells"),
        (["accept", CELLS[0], "step_seconds", "zzz", "--store", str(folder)], "no night of"),
    ):
        words = ["--who", "me", "--why", "so"] if arguments[0] == "accept" else []
        assert main(["history", *arguments, *words]) == 2
        assert said in capsys.readouterr().err


def test_pictures_hold_every_point_and_mark(tmp_path, capsys):
    folder = kept(tmp_path / "h", 80, step(50, 0.1, CELLS[0]), cells=CELLS[:2])
    kept_marks = history.accept_change(folder, CELLS[1], "step_seconds", commit(20), "me", "so")
    assert kept_marks == 0 and main(["history", "show", "--store", str(folder), "--out", str(tmp_path / "plots")]) == 0
    assert "regressed at" in capsys.readouterr().out
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert [name for name in names if name.endswith(".png")] == [
        "history-one-peak-memory-bytes.png", "history-one-step-seconds.png"
    ]  # fmt: skip
    import pandas as pd

    data = pd.read_csv(tmp_path / "plots" / "history-one-step-seconds.csv")
    assert len(data) == 160 and data[data["mark"].notna()][["commit", "mark"]].values.tolist() == [
        [commit(50), "regressed"], [commit(20), "accepted"]
    ]  # fmt: skip
    svg = (tmp_path / "plots" / "history-one-step-seconds.svg").read_text()
    assert f"at {commit(50)[:12]}" in svg and f"accepted at {commit(20)[:12]}" in svg
