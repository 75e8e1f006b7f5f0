import json

import pytest

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from benchmarks.layout import Layout
from harness.compare import compare, compare_runs, written
from harness.record import Metric, Observed, Record, Samples, Verification

NOON = "2025-01-01T12:00:00Z"


def made(layout="dp=2:ddp", *, seconds=1.0, peak=1000, loss=5.0, calls=3, status="ok", environment="one", time=NOON):
    spread = Layout.parse(layout)
    cell = Cell(layout=spread, devices=spread.devices, processes=spread.devices)
    figures = {}
    if status == "ok":
        figures = {
            "samples": Samples(step_seconds=[seconds, 9 * seconds, seconds]),
            "metrics": {"peak_memory_bytes": Metric(value=peak, unit="bytes"), "final_loss": Metric(value=loss, unit="nats")},
            "observed": Observed(collectives={"dp": {"all_reduce": {"count": calls, "bytes": 64}}} if calls else {}),
            "verification": Verification(reference="0" * 12, model=cell.model, verdict="passed"),
        }
    return Record(
        run_id="run", cell_id=cell.id, time=time, environment_id=environment, cell=cell, status=status,
        reason=None if status == "ok" else "it was so", **figures,
    )  # fmt: skip


def words(base, head):
    comparison = compare_runs(base, head)
    return {v.metric: v.word for v in comparison.verdicts}, comparison.exit_status


FIVE = (1.000, 1.001, 0.999, 1.002, 0.998)
EXACT = ("peak_memory_bytes", "final_loss", "collectives.dp.all_reduce")


def test_one_run_a_side_tells_exact_metrics_and_no_times():
    found, status = words([[made()]], [[made(seconds=2.0)]])
    assert found == {**dict.fromkeys(EXACT, "stable"), "step_seconds": "inconclusive"} and status == 2


def test_five_runs_a_side_tell_times():
    base = [[made(seconds=s)] for s in FIVE]
    assert words(base, [[made(seconds=s)] for s in FIVE]) == ({**dict.fromkeys(EXACT, "stable"), "step_seconds": "stable"}, 0)
    found, status = words(base, [[made(seconds=1.1 * s)] for s in FIVE])
    assert found["step_seconds"] == "regressed" and status == 1
    found, status = words(base, [[made(seconds=0.9 * s)] for s in FIVE])
    assert found["step_seconds"] == "improved" and status == 0


@pytest.mark.parametrize(
    ("change", "metric", "word"),
    [
        ({"peak": 1001}, "peak_memory_bytes", "regressed"),
        ({"peak": 999}, "peak_memory_bytes", "improved"),
        ({"loss": 5.0 + 1e-12}, "final_loss", "regressed"),
        ({"calls": 4}, "collectives.dp.all_reduce", "regressed"),
        ({"calls": 0}, "collectives.dp.all_reduce", "improved"),
    ],
)
def test_exact_metrics_fail_in_both_directions(change, metric, word):
    found, status = words([[made()]], [[made(**change)]])
    assert found[metric] == word and status == 1


def test_exact_metrics_that_vary_are_held_to_their_own_range():
    base = [[made(peak=peak)] for peak in (1000, 1010)]
    assert words(base, [[made(peak=1005)]])[0]["peak_memory_bytes"] == "stable"
    assert words(base, [[made(peak=1011)]])[0]["peak_memory_bytes"] == "regressed"


@pytest.mark.parametrize(
    ("base", "head", "word", "status"),
    [
        ([made()], [made(environment="two")], "not comparable", 2),
        ([made()], [], "not comparable", 2),
        ([], [made()], "missing baseline", 2),
        ([made(status="oom")], [made()], "missing baseline", 2),
        ([made()], [made(status="crashed")], "errored", 1),
        ([made(status="timeout")], [made(status="crashed")], "errored", 1),
    ],
)
def test_cells_without_a_partner(base, head, word, status):
    assert words([base], [head]) == ({"": word}, status)


def test_cells_that_fail_alike_are_counted():
    comparison = compare_runs([[made(status="skipped")]], [[made(status="skipped")]])
    assert comparison.verdicts == () and comparison.without_figures == {"skipped": 1} and comparison.exit_status == 2


def test_runs_that_are_not_interleaved_are_noted():
    base = [[made(time=f"2025-01-01T00:0{i}:00Z")] for i in (1, 2)]
    after = [[made(time=f"2025-01-01T00:0{i}:00Z")] for i in (3, 4)]
    between = [[made(time=f"2025-01-01T00:0{i}:30Z")] for i in (1, 2)]
    assert "not interleaved" in compare_runs(base, after).notes[0]
    assert compare_runs(base, between).notes == ()


def test_text_tells_changes_one_by_one_and_counts_the_rest():
    text = written(compare_runs([[made(), made("tp=2:hand")]], [[made(peak=2000), made("tp=2:hand")]]), "base", "head")
    assert "regressed (1)" in text and "1000 bytes -> 2000 bytes" in text
    assert "1 s -> 1 s (+0.0%); 1 against 1 run: give 5 or more on each side" in text
    assert "verdicts: 5 stable, 2 inconclusive, 1 regressed" in text and text.endswith("exact metrics")


def store(folder, *records):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"schema": 1}))
    (folder / "environment.json").write_text("{}")
    (folder / "records.jsonl").write_text("".join(record.to_line() + "\n" for record in records))
    return folder


def test_folders_of_runs(tmp_path, capsys):
    for i, seconds in enumerate(FIVE):
        store(tmp_path / "base" / str(i), made(seconds=seconds))
        store(tmp_path / "head" / str(i), made(seconds=1.2 * seconds))
    assert compare(tmp_path / "base", tmp_path / "head") == 1
    assert "regressed (1)" in capsys.readouterr().out
    assert compare(tmp_path / "base" / "0", tmp_path / "head" / "0") == 2


def test_bad_folders(tmp_path):
    run = store(tmp_path / "run", made())
    (tmp_path / "nothing").mkdir()
    for other in ("absent", "nothing"):
        with pytest.raises(UsageError, match="give"):
            compare(run, tmp_path / other)
