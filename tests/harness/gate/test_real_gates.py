"""What the script of real gates appends to a strategy slows it; otherwise its gates would compare with an import error."""

import importlib.util
import sys
import time

import torch

from benchmarks.contract import Update
from harness.launch.local import ROOT
from tests.performance.gate import SLEEP, SLOWED_FILE


def test_the_slowed_strategy_sleeps_in_its_update(tmp_path, monkeypatch):
    file = tmp_path / "slowed.py"
    file.write_text((ROOT / SLOWED_FILE).read_text() + SLEEP.format(seconds=0.25))
    spec = importlib.util.spec_from_file_location("benchmarks.data_parallel.slowed", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    update, slept = Update(torch.tensor(1.0), False), []

    class Replica:
        def update(self, *, want_norm):
            return update

    spec.loader.exec_module(module)
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(module, "_wrap", lambda self, *args: Replica())
    assert module.Strategy().wrap(None, None, None, None).update(want_norm=True) is update
    assert slept == [0.25]
