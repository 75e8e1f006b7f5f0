"""The contract holds: a new file in the data axis's folder appears, unannounced, in every hybrid, and each is verified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.registry import names
from tests.parity.conftest import SLOW

ROOT = Path(__file__).parents[2]

NEW_FILE = '''"""Data parallelism in its simplest form: after backward, one all-reduce averages each gradient."""

from dataclasses import dataclass

import torch.distributed as dist

from benchmarks.contract import DataParallel
from benchmarks.initialize import materialize
from benchmarks.replica import LocalReplica, local


class AfterBackward(LocalReplica):
    def __init__(self, assembly, optimizer, world):
        super().__init__(assembly, optimizer, world)
        self.group, self.degree = world.group("dp"), world.degrees["dp"]

    def reduce(self):
        for entry in self._held:
            gradient = local(entry.parameter.grad)
            dist.all_reduce(gradient, group=self.group)
            gradient.div_(self.degree)


@dataclass(frozen=True)
class Strategy(DataParallel):
    def wrap(self, assembly, optimizer, cell, world):
        for part in assembly.parts:
            materialize(part, world)
        return AfterBackward(assembly, optimizer, world)
'''


def test_a_file_of_thirty_lines_gives_all_its_hybrids(tmp_path: Path):
    assert len(NEW_FILE.splitlines()) <= 30
    for package in ("benchmarks", "harness", "configs"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "benchmarks" / "data_parallel" / "newcomer.py").write_text(NEW_FILE)
    tensors = [f"tp=2:{name}," for name in names("tensor_parallel")]
    pipelines = [f"pp=2:{name}," for name in names("pipeline_parallel") if name not in SLOW]
    # Every implementation, and hybrids of three axes with the oldest pipelines; those of all would take minutes.
    both = [pipeline + tensor for pipeline in ("pp=2:devices,", "pp=2:manual,", "pp=2:1f1b,") for tensor in tensors]
    layouts = [f"{others}dp=2:newcomer" for others in ("", *tensors, *pipelines, *both)]
    suite = {
        "description": "a newcomer in every hybrid",
        "defaults": {"protocol": {"measure_steps": 0}, "batch": {"global": 8, "microbatches": 4, "sequence": 32}},
        "cells": [{"model": "gpt2-tiny", "clip": 1.0, "layout": layouts}],
    }
    (tmp_path / "configs" / "suites" / "newcomer.yaml").write_text(json.dumps(suite))

    command = [sys.executable, "-m", "harness.cli", "run", "newcomer", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    ended = {record["cell"]["layout"]: (record["status"], record["reason"]) for record in records}
    assert len(ended) == len(layouts)
    for layout, (status, reason) in ended.items():
        if "pp=2:devices,tp=2" in layout:
            assert status == "skipped" and "one process drives all stages" in reason
        else:
            assert status == "ok", f"{layout}: {reason}"
    assert all(r["verification"]["verdict"] == "passed" for r in records if r["status"] == "ok")
