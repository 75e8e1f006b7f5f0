"""An engine that does what the reference does passes; every way of doing something else is seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cell import Cell
from harness.record import Verification
from harness.verdict import judge
from harness.verify import _length_error, digests, reference, verify
from tests.harness.plain_engine import WORLD, PlainEngine

CELL = Cell.model_validate({"model": "llama-tiny[blocks=2]", "batch": {"global": 4, "sequence": 32}})


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return reference(_payload(tmp_path_factory.mktemp("references")))


def _payload(folder: Path) -> dict[str, Any]:
    cell = CELL.model_dump(mode="json", by_alias=True)
    return {"cell": cell, "device_bytes": 0, "device": "cpu", "threads": 1, "memory_bytes": 0, "folder": str(folder)}


def engine_for(wanted: dict[str, Any]) -> PlainEngine:
    return PlainEngine(CELL.model, lambda p: torch.optim.SGD(p, lr=wanted["learning_rate"]), factor=wanted["loss_factor"])


def check(wanted: dict[str, Any], spoil: Callable[[PlainEngine], Any] = lambda engine: None) -> Verification:
    engine = engine_for(wanted)
    spoil(engine)
    return judge([verify(engine, CELL, WORLD, wanted)], wanted, precision="fp32")


def test_the_same_step_passes(wanted: dict[str, Any]) -> None:
    found = check(wanted)
    assert (found.verdict, found.why) == ("passed", None)
    assert max(found.max_relative_loss_error or 0, found.max_relative_gradient_norm_error or 0) < 1e-6
    assert found.max_update_error is not None and found.max_update_error < 1e-5


def test_the_reference_is_trained_once(wanted: dict[str, Any]) -> None:
    file = Path(wanted["parameters_file"])
    written = file.stat().st_mtime_ns
    assert reference(_payload(file.parent)) == wanted
    assert file.stat().st_mtime_ns == written


def test_a_reference_that_does_not_fit_is_cut_in_depth(tmp_path: Path) -> None:
    payload = {**_payload(tmp_path), "device_bytes": 1}
    payload["cell"]["model"] = "llama-tiny"
    assert reference(payload)["model"] == "llama-tiny[blocks=2]"


@pytest.mark.parametrize("name", ["block1.attention_norm.weight", "embedding.token.weight", "block0.mlp.up.weight"])
def test_one_weights_gradient_times_1_1_fails(wanted: dict[str, Any], name: str) -> None:
    found = check(wanted, lambda e: e.module.get_parameter(name).register_hook(lambda g: g * 1.1))
    assert found.verdict == "failed"
    assert found.worst_parameter == name
    # Exactly 0.1 after one step; the next ones start elsewhere and so have other gradients.
    assert found.max_update_error == pytest.approx(0.1, rel=0.5)


def test_a_wrong_scale_of_all_gradients_fails(wanted: dict[str, Any]) -> None:
    def halve(engine: PlainEngine) -> None:
        engine._factor /= 2

    found = check(wanted, halve)
    assert found.verdict == "failed"
    assert found.max_update_error is not None and found.max_update_error > 0.3


def test_an_unasked_clip_at_one_fails(wanted: dict[str, Any]) -> None:
    def clip(engine: PlainEngine) -> None:
        def before(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(engine.module.parameters(), 1.0)

        engine.optimizer.register_step_pre_hook(before)

    assert check(wanted, clip).verdict == "failed"


def test_a_nan_fails(wanted: dict[str, Any]) -> None:
    def poison(engine: PlainEngine) -> None:
        engine.module.get_parameter("block1.mlp.up.weight").register_hook(lambda g: g * math.nan)

    found = check(wanted, poison)
    assert found.verdict == "failed"
    assert found.max_update_error is None
    Verification.model_validate_json(found.model_dump_json())


def test_other_initial_weights_fail(wanted: dict[str, Any]) -> None:
    def move(engine: PlainEngine) -> None:
        with torch.no_grad():
            engine.module.get_parameter("block0.mlp.up.weight").mul_(1.001)

    found = check(wanted, move)
    assert found.why is not None and "block0.mlp.up.weight does not start from the reference's weights" in found.why


def test_a_missing_parameter_fails(wanted: dict[str, Any]) -> None:
    def forget(engine: PlainEngine) -> None:
        kept = [pair for pair in engine.parameters() if pair[0] != "block0.mlp.up.weight"]
        engine.parameters = lambda: iter(kept)  # type: ignore[method-assign]

    found = check(wanted, forget)
    assert found.why == "no rank holds block0.mlp.up.weight"


def test_copies_of_two_ranks_are_compared_by_their_bits(wanted: dict[str, Any]) -> None:
    findings = []
    for spoiled in (False, True):
        engine = engine_for(wanted)
        if spoiled:  # by less than any tolerance
            parameter = engine.module.get_parameter("block0.mlp_norm.weight")
            engine.optimizer.register_step_post_hook(lambda *_, p=parameter: p.data.view(-1)[:1].mul_(1 + 2e-7))
        findings.append(verify(engine, CELL, WORLD, wanted))
    found = judge(findings, wanted, precision="fp32")
    assert found.why is not None and "ranks 0 and 1 hold different copies of" in found.why


def test_a_digest_tells_every_bit(wanted: dict[str, Any]) -> None:
    engine = engine_for(wanted)
    before = digests(engine)
    assert digests(engine) == before
    engine.module.get_parameter("head.norm.weight").data[3] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    assert {name for name, digest in digests(engine).items() if digest != before[name]} == {"head.norm.weight"}


def _after_three_steps(gradients: list[torch.Tensor]) -> torch.Tensor:
    """A norm's weights of 1 after steps that move them by millionths."""
    weight = torch.ones(768)
    for gradient in gradients:
        weight -= gradient
    return weight


@pytest.mark.parametrize(
    ("wrong", "least", "most"),
    [
        (1.015, 0.008, 0.015),  # hidden in the rounding of each weight, and not of all
        (0.985, 0.008, 0.015),
        (1.0, 0.0, 1e-4),
    ],
)
def test_a_gradient_a_little_too_large_beside_rounding(wrong: float, least: float, most: float) -> None:
    draw = torch.Generator().manual_seed(1)
    true = [torch.empty(768).uniform_(-7e-6, 7e-6, generator=draw) for _ in range(3)]
    noise = [1 + 1e-5 * torch.randn(768, generator=draw) for _ in true]  # of other orders of summation
    found = _after_three_steps([g * wrong * n for g, n in zip(true, noise, strict=True)]) - 1
    wanted = _after_three_steps(true) - 1
    rounding = torch.full((768,), 3 * torch.finfo(torch.float32).eps)
    assert ((found - wanted).abs() <= rounding).all()
    assert least <= _length_error(found, wanted, rounding) <= most


def test_the_length_of_what_does_not_move_and_of_what_is_no_number() -> None:
    still, rounding = torch.zeros(4), torch.full((4,), 1e-7)
    assert _length_error(still, still, rounding) == 0
    assert math.isnan(_length_error(torch.full((4,), math.nan), torch.ones(4), rounding))
