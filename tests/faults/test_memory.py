"""Real memory that runs out on CPUs, as it does on a device, from the command line: the search for the largest batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import store
from harness.cli import main


@pytest.mark.slow
def test_the_largest_batch_is_searched_measured_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    quick = ["protocol.warmup_steps=2", "protocol.measure_steps=2", "protocol.measure_seconds=0"]
    options = [word for field in quick for word in ("--set", field)]
    model = ["--model", "llama-tiny[blocks=2]", "--layout", "dp=2", "--sequence", "512", "--device-memory", "160MiB"]
    assert main(["run", *model, "--batch", "max", *options, "--out", str(folder)]) == 0
    (record,) = store.read(folder).records
    assert record.status == "ok" and record.search is not None
    rows = record.cell.batch.global_size // 2
    assert record.cell_id == record.cell.id != record.search.asked == record.asked
    trials = {trial.rows: trial.status for trial in record.search.trials}
    assert trials[rows] == "ok" and trials.get(rows + 1) == "oom", record.search
    assert main(["run", "--resume", str(folder)]) == 0  # nothing is left to do
    assert len(store.read(folder).records) == 1


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--batch", "max"], ["batch is 'max'", "--device-memory 2GiB"]),
        (["--device-memory", "lots"], ["cannot read memory 'lots'"]),
        (["--retry", "oom"], ["--resume DIR"]),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--layout", "single", *arguments, "--out", "/tmp/never-made"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(part in said for part in parts), said
    assert not os.path.exists("/tmp/never-made")


def test_a_side_by_side_run_pins_cells_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "description: three small cells\n"
        "defaults: {model: 'llama-tiny[blocks=2]', batch: {global: 4, sequence: 16}, protocol: {measure_steps: 0}}\n"
        "cells: [{clip: [0, 1, 2]}]\n"
    )
    assert main(["run", str(tmp_path / "mine.yaml"), "--parallel-cells", "--out", str(tmp_path / "run")]) == 0
    records = store.read(tmp_path / "run").records
    assert [r.status for r in records] == ["ok"] * 3
    assert all(any(c.startswith("parallel: other cells ran beside") for c in r.caveats) for r in records)
