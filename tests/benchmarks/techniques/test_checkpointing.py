"""Checkpointing recomputes blocks and changes no value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fairscale.nn.checkpoint import checkpoint_activations as upstream

from benchmarks import initialize, models
from benchmarks.cell import recomputes
from benchmarks.contract import Part
from benchmarks.techniques import deepspeed_checkpointing, fairscale_checkpointing
from benchmarks.techniques.checkpointing import apply_checkpointing
from benchmarks.techniques.precision import PRECISIONS, apply_precision
from tests.benchmarks.test_ranks import ranks


def part() -> Part:
    model = models.load("llama-tiny[blocks=2]")
    chain = initialize.chain(model, model.units).to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in chain.named_parameters():
            parameter.copy_(initialize.full(model, name, 0))
    placements = initialize.placements(model, chain)
    return Part(model=model, module=chain, index=0, count=1, blocks=model.blocks, placements=placements)


def gradients(policy: str, precision: str = "fp32") -> tuple[dict[str, torch.Tensor], int]:
    made = part()
    forwards = []
    for name in made.blocks:
        made.module.get_submodule(name).mlp.register_forward_pre_hook(lambda *_: forwards.append(1))
    apply_checkpointing(made, policy, PRECISIONS[precision], "cpu")
    apply_precision(made.module, PRECISIONS[precision], "cpu")
    tokens = torch.arange(16).view(2, 8)
    made.model.loss(made.module(tokens), tokens).backward()
    return {name: p.grad for name, p in made.module.named_parameters()}, len(forwards)


@pytest.mark.parametrize(
    ("policy", "calls"), [("selective", 4), ("every-2", 3), *((name, 4) for name in ("full", "fairscale", "deepspeed"))]
)
def test_gradients_are_equal_and_chosen_blocks_run_twice(policy: str, calls: int):
    plain, once = gradients("none")
    recomputed, twice = gradients(policy)
    assert (once, twice) == (2, calls)
    assert plain.keys() == recomputed.keys()
    for name in plain:
        assert torch.equal(plain[name], recomputed[name])


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [
        ("none", []),
        ("selective", range(9)),
        ("full", range(9)),
        ("fairscale", range(9)),
        ("deepspeed", range(9)),
        ("every-2", [0, 2, 4, 6, 8]),
        ("every-3", [0, 3, 6]),
    ],
)
def test_which_blocks_are_run_again(policy: str, blocks: Sequence[int]):
    assert [block for block in range(9) if recomputes(policy, block)] == list(blocks)


def test_another_frameworks_runs_blocks_again_in_the_precision_of_their_forward(monkeypatch: pytest.MonkeyPatch):
    wanted, _ = gradients("none", "bf16")

    def error() -> float:
        found, _ = gradients("fairscale", "bf16")
        return max(((found[name] - g).abs().max() / g.abs().max()).item() for name, g in wanted.items())

    plain = {name: getattr(upstream, name) for name in ("autocast", "is_autocast_enabled")}
    assert error() == 0.0
    for name, function in plain.items():
        monkeypatch.setattr(upstream, name, function)
    monkeypatch.setattr(fairscale_checkpointing, "_mend_autocast", lambda *_: "")
    assert error() > 1e-4  # what is run again is fp32, of which nobody is told


def test_another_frameworks_keeps_the_inputs_of_blocks(launcher: Any, tmp_path: Path):
    positions, hidden, vocabulary, blocks = 8 * 256, 128, 256, 8
    head = positions * (3 * hidden + 2 * vocabulary) * 4
    found = activation_bytes("fairscale", launcher, tmp_path, "kept_bytes")
    assert found == pytest.approx(blocks * positions * hidden * 4 + head, rel=0.05)


def test_deepspeeds_runs_blocks_again_in_the_precision_of_their_forward(monkeypatch: pytest.MonkeyPatch):
    wanted, _ = gradients("none", "bf16")

    def error() -> float:
        found, _ = gradients("deepspeed", "bf16")
        return max(((found[name] - g).abs().max() / g.abs().max()).item() for name, g in wanted.items())

    assert error() == 0.0
    monkeypatch.setattr(deepspeed_checkpointing, "_cast", lambda forward, *_: forward)
    assert error() > 1e-4  # what is run again is fp32, of which nobody is told


def activation_bytes(policy: str, launcher: Any, folder: Path, function: str = "activations") -> float:
    model = "llama-tiny[hidden=128,mlp=384,blocks=8]"
    batch = {"global": 8, "microbatches": 1, "sequence": 256}
    (answer,) = ranks(launcher, function, "single", folder, model=model, checkpointing=policy, batch=batch)
    return answer["bytes"]


def test_bytes_are_those_of_the_formula(launcher: Any, tmp_path: Path):
    positions, hidden, mlp, vocabulary, blocks = 8 * 256, 128, 384, 256, 8
    inside = positions * (9 * hidden + 4 * mlp) * 4
    head = positions * (3 * hidden + 2 * vocabulary) * 4
    none = blocks * (positions * hidden * 4 + inside) + head
    full = (blocks + 1) * positions * hidden * 4 + inside
    assert activation_bytes("none", launcher, tmp_path / "none") == pytest.approx(none, rel=0.1)
    assert activation_bytes("full", launcher, tmp_path / "full") == pytest.approx(full, rel=0.1)
    assert full < activation_bytes("selective", launcher, tmp_path / "selective") < 0.7 * none
    assert activation_bytes("every-2", launcher, tmp_path / "every-2") == pytest.approx((none + full) / 2, rel=0.1)
