"""The verdict on findings written by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from harness.record import Verification
from harness.verdict import disagreement, judge, strayed, unmoved

REFERENCE = {
    "cell": "0123456789ab",
    "model": "llama-tiny",
    "parameters": ["a.weight", "b.weight", "c.bias"],
    "losses": [4.0, 3.0, 2.0],
    "gradient_norms": [8.0, 4.0, 2.0],
    "skipped": [False, False, False],
    "loss_factor": 2.0,
    "mixes_rows": False,
    "stand_in": "",
}


def entry(**fields: Any) -> dict[str, Any]:
    fields = {"update_error": 1e-7, "moved": 0.1, "moved_reference": 0.1, "digest": "d0", **fields}
    return {"start_error": 0.0, "start_limit": 0.0, **fields}


def finding(**fields: Any) -> dict[str, Any]:
    parameters = {name: entry() for name in REFERENCE["parameters"]}
    seen = {"losses": [4.0, 3.0, 2.0], "norms": [8.0, 4.0, 2.0], "skipped": [False] * 3, "incomparable": None}
    return copy.deepcopy({**seen, "parameters": parameters, **fields})


def verdict_of(*findings: dict[str, Any], precision: str = "fp32", **reference: Any) -> Verification:
    return judge(list(findings), {**REFERENCE, **reference}, precision=precision)


def test_equal_is_passed() -> None:
    found = verdict_of(finding(), finding())
    assert (found.verdict, found.why) == ("passed", None)
    assert (found.max_relative_loss_error, found.max_relative_gradient_norm_error, found.max_update_error) == (0, 0, 1e-7)
    assert found.tolerance == {"loss": 1e-6, "gradient_norm": 1e-5, "update": 1e-3, "optimizer_loss": 1e-5, "noise": 1e-5}


@pytest.mark.parametrize("stand_in", ["shallow", "smooth", "shallow, smooth"])
def test_a_model_that_another_stands_in_for_passes_in_words(stand_in: str) -> None:
    assert verdict_of(finding(), stand_in=stand_in).verdict == f"passed ({stand_in})"


def test_what_cannot_be_compared_says_why_and_keeps_what_was_seen() -> None:
    found = verdict_of(finding(losses=[9.0, 9.0, 9.0], skipped=[True, False, False], incomparable="another function"))
    assert (found.verdict, found.why) == ("not comparable", "another function")
    assert found.max_relative_loss_error == 3.5


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"losses": [4.0, math.nan, 2.0]}, "the loss is nan"),
        ({"parameters": {"a.weight": entry()}}, "no rank holds b.weight"),
        ({"parameters": {name: entry(start_error=0.1) for name in REFERENCE["parameters"]}}, "does not start from"),
    ],
)
def test_what_cannot_be_compared_can_fail(fields: dict[str, Any], why: str) -> None:
    found = verdict_of(finding(incomparable="another function", **fields))
    assert found.verdict == "failed" and why in found.why


def test_models_that_mix_rows_are_held_to_tolerances_of_their_own() -> None:
    rough = finding(losses=[4.0, 3.0, 2.02])
    assert verdict_of(rough, precision="bf16").verdict == "failed"
    assert verdict_of(rough, precision="bf16", mixes_rows=True).verdict == "passed"


def test_losses_are_averaged_over_the_ranks_that_have_one() -> None:
    ranks = [finding(losses=[3.0, 3.0, 2.0]), finding(losses=[5.0, 3.0, 2.0]), finding(losses=[None, None, None])]
    assert verdict_of(*ranks).losses == [4.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("losses", [4.0, 3.0, 2.00001], "the loss is off by 5e-06"),
        ("losses", [4.0, math.nan, 2.0], "the loss is off by nan"),
        ("losses", [4.0, 3.0, math.inf], "the loss is off by inf"),
        ("norms", [8.0, 4.0, 2.0001], "the gradient norm is off by 5e-05"),
        ("norms", [8.0, math.nan, 2.0], "the gradient norm is off by nan"),
        ("skipped", [True, False, False], "rank 1 skipped step 0 and the reference no step"),
    ],
)
def test_a_step_that_differs_on_one_rank_fails(field: str, value: list[Any], why: str) -> None:
    found = verdict_of(finding(), finding(**{field: value, **({"losses": value} if field == "losses" else {})}))
    if field == "losses":
        found = verdict_of(finding(losses=value))
    assert found.verdict == "failed"
    assert found.why is not None and why in found.why
    Verification.model_validate_json(found.model_dump_json())  # whatever was computed, it can be stored and read


@pytest.mark.parametrize("error", [0.1, math.nan, math.inf])
def test_one_parameters_wrong_update_fails_and_is_named(error: float) -> None:
    wrong = finding()
    wrong["parameters"]["b.weight"]["update_error"] = error
    found = verdict_of(finding(), wrong)
    assert (found.verdict, found.worst_parameter) == ("failed", "b.weight")
    assert found.why is not None and "b.weight" in found.why


def test_sixteen_bits_are_held_to_less() -> None:
    ours = finding()
    ours["parameters"]["a.weight"]["update_error"] = 0.01
    assert verdict_of(ours, precision="fp32").verdict == "failed"
    assert verdict_of(ours, precision="bf16").verdict == "passed"


def test_a_parameter_that_no_rank_holds_fails() -> None:
    ours = finding()
    del ours["parameters"]["c.bias"]
    assert verdict_of(ours).why == "no rank holds c.bias"
    assert verdict_of(ours, finding()).verdict == "passed"


def test_a_parameter_that_the_model_has_not_fails() -> None:
    ours = finding()
    ours["parameters"]["d.weight"] = entry()
    assert verdict_of(ours).why == "d.weight is no parameter of the model"


def test_copies_that_differ_in_a_bit_fail() -> None:
    other = finding()
    other["parameters"]["b.weight"]["digest"] = "d1"
    assert verdict_of(finding(), finding(), other).why == "ranks 0 and 2 hold different copies of b.weight"
    assert disagreement([{"x": "1", "y": "1"}, {"z": "2"}]) is None


def test_weights_that_start_elsewhere_fail() -> None:
    ours = finding()
    ours["parameters"]["a.weight"].update(start_error=0.5, start_limit=1e-7)
    assert verdict_of(ours).why == "a.weight does not start from the reference's weights: it is off by 0.5"


def test_what_the_reference_moves_by_noise_must_only_not_move() -> None:
    # Attention's key bias has no gradient, so both sides move it by rounding alone, and relative to that anything differs.
    still = finding()
    still["parameters"]["c.bias"].update(update_error=1.7, moved=3e-9, moved_reference=2e-9)
    assert verdict_of(still).verdict == "passed"
    assert unmoved([still], REFERENCE, precision="fp32") == ["c.bias"]
    still["parameters"]["c.bias"].update(moved=1e-3)
    assert verdict_of(still).verdict == "failed"
    still["parameters"]["c.bias"].update(moved=math.nan)
    assert verdict_of(still).verdict == "failed"


def test_skipped_steps_are_compared_by_their_skips() -> None:
    reference = {"skipped": [True, False, False], "gradient_norms": [None, 4.0, 2.0]}
    same = finding(skipped=[True, False, False], norms=[None, 4.0, 2.0])
    assert verdict_of(same, **reference).verdict == "passed"
    assert verdict_of(finding(), **reference).why == "rank 0 skipped no step and the reference step 0"


def test_nothing_is_verified_where_no_update_was_applied() -> None:
    reference = {"skipped": [True] * 3, "gradient_norms": [None] * 3}
    found = verdict_of(finding(skipped=[True] * 3, norms=[None] * 3), **reference)
    assert found.verdict == "failed" and found.why is not None and "no update was compared" in found.why


def test_the_timed_engine_must_go_the_way_of_a_single_device() -> None:
    wanted = {"mixes_rows": False, "optimizer_losses": [4.0, 3.0, 2.0]}
    assert strayed([[4.0, 3.0], [None, None]], wanted, precision="fp32") is None
    assert strayed([[3.0, 3.0, 2.0], [5.0, 3.0, 2.0]], wanted, precision="fp32") is None  # their mean
    said = strayed([[4.0, 3.0, 2.001]], wanted, precision="fp32")
    assert said is not None and "step 2 is 2.001, on a single device 2: off by 0.0005" in said
    assert "nan" in (strayed([[4.0, math.nan, 2.0]], wanted, precision="fp32") or "")
