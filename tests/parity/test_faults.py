"""Verification can fail: a wrong gradient, a missing reduction or a technique that does nothing ends a cell `diverged`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.registry import AXES, load, names
from harness.record import Record
from tests.parity.conftest import cell, each

BATCH = {"global": 8, "microbatches": 2, "sequence": 32}
VERIFY_ONLY = {"measure_steps": 0}
LAYOUTS = ["single", *(parameter for axis in AXES for parameter in each(axis))]
# Precision is the business of each part's forward, whatever pipeline runs it.
SOON = [pytest.param(layout) for layout in ("single", "pp=2:gpipe", "tp=2:hand", "dp=2:fsdp")]
ALL_16_BITS = ["pp=2:devices", "pp=2:zbv", *(p.values[0] for axis in ("tp", "dp") for p in each(axis))]
IN_16_BITS = [*SOON, *(pytest.param(layout, marks=pytest.mark.slow) for layout in ALL_16_BITS)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_that_is_a_tenth_too_large_on_one_rank(run: Callable[..., Record], layout: str):
    _catches_a_louder_gradient(run, layout, "fp32")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", IN_16_BITS)
def test_a_gradient_that_is_a_tenth_too_large_in_16_bits(run: Callable[..., Record], layout: str, precision: str):
    _catches_a_louder_gradient(run, layout, precision)


def _catches_a_louder_gradient(run: Callable[..., Record], layout: str, precision: str) -> None:
    batch = {**BATCH, "microbatches": 4}  # what every schedule takes
    record = run(cell(layout, precision=precision, batch=batch, protocol=VERIFY_ONLY), "tests.parity.faults:louder_gradient")
    assert record.status == "diverged" and record.phase == "verify"
    assert record.verification.verdict == "failed"
    assert "head.norm.weight" in record.reason


@pytest.mark.parametrize("layout", [*each("dp"), "dp=2x1:hsdp", "dp=2x2:hsdp"])
def test_a_missing_sum_over_data_ranks(run: Callable[..., Record], layout: str):
    record = run(cell(layout, batch=BATCH, protocol=VERIFY_ONLY), "tests.parity.faults:skip_data_reduction")
    assert record.status == "diverged", record.reason


@pytest.mark.parametrize("name", names("tensor_parallel"))
def test_a_missing_sum_over_tensor_ranks(run: Callable[..., Record], name: str):
    record = run(cell(f"tp=2:{name}", batch=BATCH, protocol=VERIFY_ONLY), "tests.parity.faults:skip_tensor_reduction")
    assert record.status == "diverged", record.reason


TIED_OVER_PROCESSES = [
    p for p in each("pp") if p.values[0].partition(":")[2] not in ("devices", "fairscale", "zbv", "dualpipev")
]
"""The others hold both ends of the model on one process, and have no sum over processes to leave out."""


@pytest.mark.parametrize("layout", TIED_OVER_PROCESSES)
def test_a_missing_sum_over_tied_stages(run: Callable[..., Record], layout: str):
    tied = cell(layout, model="gpt2-tiny", batch=BATCH, protocol=VERIFY_ONLY)
    record = run(tied, "tests.parity.faults:skip_tied_reduction")
    assert record.status == "diverged", record.reason


def test_a_missing_sum_over_copies_on_one_process(run: Callable[..., Record]):
    tied = cell("pp=2:zbv", model="gpt2-tiny", batch=BATCH, protocol=VERIFY_ONLY)
    record = run(tied, "tests.parity.faults:forget_copies")
    assert record.status == "diverged", record.reason


@pytest.mark.parametrize(
    "layout, fault",
    [
        ("pp=2:zbv,dp=2:ddp", "reducer_in_backward"),
        ("pp=2:zbv,dp=2:fsdp", "units_in_backward"),
        ("pp=2:fairscale[checkpoint=always],dp=2:fsdp", "units_in_backward"),
    ],
)
def test_gradients_reduced_by_hooks_that_do_not_tell(run: Callable[..., Record], layout: str, fault: str):
    split = cell(layout, batch=BATCH, protocol=VERIFY_ONLY)
    record = run(split, f"tests.parity.faults:{fault}")
    assert record.status in ("diverged", "crashed"), record.reason
    assert record.phase == "verify"


@pytest.mark.parametrize(
    "name", [n for n in names("tensor_parallel") if hasattr(load("tensor_parallel", n).Strategy, "sequence")]
)
def test_norms_that_see_their_own_tokens_alone(run: Callable[..., Record], name: str):
    shared = cell(f"tp=2:{name}[sequence=true]", batch=BATCH, protocol=VERIFY_ONLY)
    record = run(shared, "tests.parity.faults:forget_sums_of_norms")
    assert record.status == "diverged" and "norm.weight" in record.reason, record.reason


SHORT = {"warmup_steps": 1, "measure_steps": 1, "measure_seconds": 0, "probe": False}


def test_checkpointing_that_does_nothing(run: Callable[..., Record]):
    record = run(cell("single", checkpointing="full", batch=BATCH, protocol=SHORT), "tests.parity.faults:forget_checkpointing")
    assert record.status == "diverged" and record.verification.verdict == "passed"
    assert "checkpoint" in record.reason


@pytest.mark.parametrize(
    ("technique", "fault", "reason"),
    [
        ({"checkpointing": "selective"}, "recompute_products", "recomputed matrix products observed where none is meant"),
        ({"offload": "activations"}, "forget_offload", "0 bytes of activations sent to the host observed on rank 0"),
        ({"compile": "block"}, "forget_compiling", "0 programs observed on rank 0"),
    ],
)
def test_techniques_that_do_nothing(run: Callable[..., Record], technique: dict[str, str], fault: str, reason: str):
    record = run(cell("single", **technique, batch=BATCH, protocol=SHORT), f"tests.parity.faults:{fault}")
    assert record.status == "diverged" and record.verification.verdict == "passed"
    assert reason in record.reason


def test_microbatches_that_are_one(run: Callable[..., Record]):
    record = run(cell("dp=2:ddp", batch=BATCH, protocol=SHORT), "tests.parity.faults:one_microbatch")
    assert record.status == "diverged"
    assert "microbatch" in record.reason


TIMED = {"warmup_steps": 10, "measure_steps": 10, "measure_seconds": 0, "probe": False}


def test_a_timed_engine_with_another_optimizer(run: Callable[..., Record]):
    record = run(cell("dp=2:ddp", batch=BATCH, protocol=TIMED), "tests.parity.faults:other_optimizer")
    assert (record.status, record.phase) == ("diverged", "measure") and record.verification.verdict == "passed"
    assert "with the cell's own optimizer the loss of step" in record.reason


def test_copies_that_drift_while_they_are_timed(run: Callable[..., Record]):
    record = run(cell("dp=2:ddp", batch=BATCH, protocol=TIMED), "tests.parity.faults:doubled_later")
    assert (record.status, record.phase) == ("diverged", "measure") and record.verification.verdict == "passed"
    assert "different copies" in record.reason


def test_timed_steps_that_loss_scaling_leaves_out(run: Callable[..., Record]):
    protocol = {**TIMED, "measure_steps": 40}
    record = run(cell("dp=2:ddp", precision="fp16", batch=BATCH, protocol=protocol), "tests.parity.faults:skipping")
    assert record.status == "ok", record.reason
    assert any(caveat.startswith("skipped: loss scaling left out") for caveat in record.caveats)
