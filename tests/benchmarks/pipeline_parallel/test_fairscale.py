"""FairScale's Pipe in pieces: what its checkpoint modes keep, and how it balances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fairscale.nn.pipe import balance as upstream

from benchmarks import models
from benchmarks.pipeline_parallel import _balance
from benchmarks.strategies import strategy
from tests.benchmarks.test_ranks import ranks
from tests.harness.plain_engine import WORLD
from tests.parity.conftest import cell

MODEL = "llama-tiny[hidden=128,mlp=384,blocks=8]"
BATCH = {"global": 8, "microbatches": 4, "sequence": 256}


def kept_bytes(mode: str, launcher: Any, folder: Path) -> float:
    layout = f"pp=2:fairscale[checkpoint={mode}]"
    (answer,) = ranks(launcher, "kept_bytes", layout, folder, model=MODEL, batch=BATCH)
    return answer["bytes"]


def test_checkpoint_modes_keep_what_they_say(launcher: Any, tmp_path: Path):
    positions, hidden, mlp, vocabulary, blocks, microbatches = 8 * 256, 128, 384, 256, 8, 4
    stream, logits = positions * hidden * 4, positions * vocabulary * 4
    # What a block keeps, and the head (techniques.checkpointing); logits put together, and the loss's own.
    inside = blocks * (stream + positions * (9 * hidden + 4 * mlp) * 4) + 3 * stream
    outputs = 2 * logits
    expected = {
        "never": inside + outputs,
        "except_last": inside / microbatches + stream * (microbatches - 1) / microbatches + outputs,
        "always": stream + outputs,  # the input of the second stage; that of the first are tokens
    }
    for mode, wanted in expected.items():
        assert kept_bytes(mode, launcher, tmp_path / mode) == pytest.approx(wanted, rel=0.05), mode


@pytest.mark.parametrize(("mode", "repeated"), [("never", 0), ("except_last", 3), ("always", 4)])
def test_how_many_microbatches_run_again(mode: str, repeated: int):
    made = cell(f"pp=2:fairscale[checkpoint={mode}]", batch=BATCH)
    assert strategy(made.layout.get("pp")).repeats(made) == repeated


@pytest.mark.parametrize(
    ("costs", "stages", "sizes"),
    [
        # By its search: 6 5 4 | 3 2 1 is 15 against 6, and less the least of each, in fifths, 12 against 3. That is more than
        # one greatest cost apart, so that the first stage gives its last unit away: 9 against 6.
        ([6, 5, 4, 3, 2, 1], 2, [2, 4]),
        # 4 3 2 against 1 0 0 after subtraction is 9 against 1, so that 4 3 | 2 1 0 0 it is: 7 against 3.
        ([5, 4, 3, 2, 1, 1], 2, [2, 4]),
        # Equal costs count for nothing, and the last stage gets what is over.
        ([7] * 11, 4, [2, 2, 2, 5]),
    ],
)
def test_balance_of_given_costs(monkeypatch: pytest.MonkeyPatch, costs: list[int], stages: int, sizes: list[int]):
    monkeypatch.setattr(upstream, "profile_times", lambda *_: costs)
    model = models.load(f"llama-tiny[blocks={len(costs) - 2}]")
    made = cell(f"pp={stages}:fairscale[balance=time]", model=model.name, batch={"global": 8, "sequence": 32})
    found = _balance.found("time", model, made, WORLD)
    assert [len(units) for units in found] == sizes
    assert tuple(unit for units in found for unit in units) == model.units


def test_balance_by_size_is_told_what_an_optimizer_keeps(monkeypatch: pytest.MonkeyPatch):
    told: dict[str, Any] = {}

    def sizes(module: torch.nn.Module, inputs: torch.Tensor, chunks: int, scale: float, device: torch.device) -> list[int]:
        told.update(rows=len(inputs), chunks=chunks, scale=scale)
        return [6, 5, 4, 3, 2, 1]

    monkeypatch.setattr(upstream, "profile_sizes", sizes)
    model = models.load("llama-tiny")
    made = cell("pp=2:fairscale[balance=size],dp=2:ddp", batch={"global": 16, "microbatches": 4, "sequence": 32})
    assert [len(units) for units in _balance.found("size", model, made, WORLD)] == [2, 4]
    assert told == {"rows": 8, "chunks": 4, "scale": 4.0}  # a weight, its gradient, and Adam's two


def test_a_stage_left_empty_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_balance, "balance_by_time", lambda *_, **__: [0, 6])
    made = cell("pp=2:fairscale[balance=time]", batch={"global": 8, "sequence": 32})
    with pytest.raises(RuntimeError, match="use balance=even"):
        _balance.found("time", models.load("llama-tiny"), made, WORLD)
