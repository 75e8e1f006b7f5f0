"""Golden files: what they hold, that either direction fails, and how they are made."""

import pytest
import yaml

from benchmarks.errors import UsageError
from harness import calibrate, golden, store
from harness.cli import main
from tests.harness.runs import ENVIRONMENT, made, stored

NAME = "made-up-9000-avx2-torch-2.13.0.yaml"


def runs(tmp_path, *records, start=0):
    return [store.read(stored(tmp_path / f"run{start + i}", *found)) for i, found in enumerate(records)]


def test_the_machine_is_its_processor_or_device_and_torch():
    assert golden.machine_class(ENVIRONMENT) == NAME.removesuffix(".yaml")
    gpu = {**ENVIRONMENT, "devices": [{"name": "NVIDIA H200"}]}
    assert golden.machine_class(gpu) == "nvidia-h200-torch-2.13.0"


def test_a_file_holds_one_number_where_runs_agree_and_two_where_they_do_not(tmp_path):
    made_of = golden.made(runs(tmp_path, [made(peak=1000)], [made(peak=1000)]))
    figures = made_of.cells[made().cell_id].figures
    assert figures == {
        "peak_memory_bytes": 1000, "loss": 5.0, "gradient_norm": 4.0, "loss_after_3_steps": 3.0, "collectives.dp.all_reduce": 3
    }  # fmt: skip
    varied = golden.made(runs(tmp_path, [made(loss=5.0)], [made(loss=5.5)], start=2))
    assert varied.cells[made().cell_id].figures["loss"] == (5.0, 5.5)
    golden.save(varied, tmp_path / NAME)
    assert golden.read(tmp_path / NAME) == varied and "peak_memory_bytes: 1000\n" in (tmp_path / NAME).read_text()


@pytest.mark.parametrize(
    ("change", "metric", "word"),
    [
        ({}, None, None),
        ({"loss": 5.0 * (1 + 1e-6)}, "loss", "regressed"),
        ({"loss": 5.0 * (1 - 1e-6)}, "loss", "improved"),
        ({"peak": 1000 * (1 + 1e-6)}, "peak_memory_bytes", "regressed"),
        ({"peak": 999}, "peak_memory_bytes", "improved"),
        ({"norm": 4.1}, "gradient_norm", "regressed"),
        ({"calls": 4}, "collectives.dp.all_reduce", "regressed"),
        ({"calls": 0}, "collectives.dp.all_reduce", "improved"),
        ({"seconds": 100.0}, None, None),
        ({"steps": 4, "last": 9.0}, None, None),
        ({"status": "diverged"}, "", "errored"),
    ],
)
def test_either_direction_fails(tmp_path, change, metric, word):
    known = golden.made(runs(tmp_path, [made()]))
    comparison = golden.check(runs(tmp_path, [made(**change)], start=1), known)
    changed = {v.metric: v.word for v in comparison.verdicts if v.word != "stable"}
    assert changed == ({} if metric is None else {metric: word})
    assert comparison.exit_status == (0 if metric is None else 1)


def test_the_command_writes_the_file_to_commit_and_says_how(tmp_path, capsys):
    run, directory = stored(tmp_path / "run", made()), tmp_path / "golden"
    command = ["golden", str(run), "--golden", str(directory)]
    assert main(command) == 2
    said = capsys.readouterr().out
    proposal = run / "golden" / NAME
    assert "missing baseline (1)" in said and f"cp '{proposal}' '{directory / NAME}' && git add" in said
    directory.mkdir()
    proposal.rename(directory / NAME)
    assert main(command) == 0
    other = stored(tmp_path / "other", made(peak=1001), made("tp=2:hand"))
    assert main(["golden", str(other), "--golden", str(directory)]) == 1
    changed = yaml.safe_load((other / "golden" / NAME).read_text())["cells"]
    assert len(changed) == 2 and changed[made().cell_id]["figures"]["peak_memory_bytes"] == 1001


def test_files_that_cannot_be_read_are_named(tmp_path):
    for text, said in (
        ("schema_version: 2\nmachine: m\nruns: 1\n", "schema 2, and this hpbench reads schema 1"),
        ("schema_version: 1\nmachine: m\nruns: 1\ncels: {}\n", "unknown key 'cels'.*did you mean 'cells'"),
        ("a: [", "cannot read"),
    ):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(UsageError, match=said):
            golden.read(tmp_path / NAME)


def test_calibration_keeps_spreads_and_warns_of_noisy_cells(tmp_path, capsys):
    quiet = [made(seconds=s) for s in (1.0, 1.001, 0.999, 1.002, 0.998)]
    noisy = [made("tp=2:hand", seconds=s) for s in (1.0, 1.1, 0.9, 1.2, 0.8)]
    found = runs(tmp_path, *zip(quiet, noisy, strict=True))
    assert calibrate.write(found, tmp_path) == 0
    said = capsys.readouterr().out
    assert f"too noisy to gate: {noisy[0].cell_id}" in said and f"too noisy to gate: {quiet[0].cell_id}" not in said
    spreads = golden.spreads_for(ENVIRONMENT, tmp_path)
    assert spreads[quiet[0].cell_id] == pytest.approx(1.4826 * 0.001 * 5 / 4)
    assert spreads[noisy[0].cell_id] == pytest.approx(1.4826 * 0.1 * 5 / 4)
    # A golden file of new figures keeps the spreads.
    again = golden.made(runs(tmp_path, [made(peak=7)], start=9), before=golden.read(tmp_path / NAME))
    assert again.cells[quiet[0].cell_id].spread == spreads[quiet[0].cell_id]


def test_a_cell_that_failed_is_told_and_has_no_figures(tmp_path, capsys):
    assert calibrate.write(runs(tmp_path, [made()], [made(status="crashed")]), tmp_path) == 2
    assert f"without figures: {made().cell_id}: it was so" in capsys.readouterr().out
