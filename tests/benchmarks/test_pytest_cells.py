"""`pytest benchmarks`: cells as tests of pytest-benchmark, whose own options work on them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import store
from harness.export import export
from tests.harness.runs import made, stored

ROOT = Path(__file__).parents[2]

SUITE = """
description: one cell that runs, one that cannot
cells:
  - layout: [single, "tp=3:hand"]
    protocol: {warmup_steps: 1, measure_steps: 3, measure_seconds: 0, probe: true}
"""


def test_cells_are_measured_once_and_compared_by_pytest_benchmark(tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)
    before = tmp_path / "before.json"
    before.write_text(export(stored(tmp_path / "before", made("single", seconds=1e-6)), "pytest-benchmark"))
    options = ["--suite", tmp_path / "suite.yaml", "--out", tmp_path / "run", "--benchmark-json", tmp_path / "after.json"]
    compared = [f"--benchmark-compare={before}", "--benchmark-compare-fail=median:5%"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "benchmarks", *options, *compared]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith(".s"), done.stdout + done.stderr
    assert done.returncode != 0 and "Performance has regressed" in done.stdout + done.stderr
    assert "which tensor parallelism of degree 3 does not divide" in done.stdout
    (record,) = store.read(tmp_path / "run").records
    (bench,) = json.loads((tmp_path / "after.json").read_text())["benchmarks"]
    assert bench["stats"]["data"] == record.samples.step_seconds and bench["extra_info"]["parity"] == "passed"
    assert bench["fullname"] == json.loads(before.read_text())["benchmarks"][0]["fullname"]


@pytest.mark.parametrize("suite", ["nosuch"])
def test_a_suite_that_cannot_be(tmp_path, suite):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "benchmarks", "--suite", suite]
    done = subprocess.run([*command, "--out", tmp_path / "run"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and suite in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
