"""What the pairs do not reach: nested degrees, knobs, offloads, and the loss after a number of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.record import Record
from tests.parity.conftest import cell

SHORT = {"warmup_steps": 1, "measure_steps": 1, "measure_seconds": 0, "probe": False}
MIXED = {"precision": "bf16", "checkpointing": "full"}


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ("dp=2x2:hsdp", {}),
        ("dp=2x2:hsdp", {"precision": "fp16", "clip": 0.0}),
        ("pp=2:gpipe,dp=2x1:hsdp", MIXED),
        pytest.param("tp=2:hand,dp=2x2:hsdp", {}, marks=pytest.mark.slow),
        pytest.param("tp=2:dtensor,dp=2x2:hsdp", MIXED, marks=pytest.mark.slow),
        pytest.param("dp=4:fsdp[reshard=2]", {}, marks=pytest.mark.slow),
        ("dp=2:fsdp1[reshard=false]", MIXED),
        ("dp=2:zero1-native[parameters_as_bucket_view=true]", {}),
        ("dp=2:ddp[bucket_mb=1,gradient_as_bucket_view=false]", {}),
        ("dp=2:ddp[static_graph=true]", {"batch": {"global": 16, "sequence": 32}}),
        ("dp=2:ddp[compression=fp16]", {"precision": "bf16"}),
        ("dp=2:ddp", {"offload": "optimizer", "precision": "fp16"}),
        ("dp=2:zero1", {"offload": "optimizer"}),
        ("dp=2:zero2", {"offload": "optimizer", "precision": "fp16"}),
        ("dp=2:zero3", {"model": "mlp-tiny", "checkpointing": "full"}),
        ("dp=2:zero3", {"offload": "parameters", "precision": "fp16"}),
        ("tp=2:dtensor,dp=2:fsdp", {"offload": "optimizer"}),
        ("dp=2:fsdp", {"offload": "parameters", **MIXED}),
        ("dp=2:replicate", {"offload": "parameters"}),
        ("dp=2x2:hsdp", {"offload": "parameters", "precision": "fp16"}),
    ],
)
def test_parity(run: Callable[..., Record], layout: str, fields: dict[str, Any]):
    batch = {"global": 16, "microbatches": 2, "sequence": 32}
    record = run(cell(layout, **{"model": "gpt2-tiny", "clip": 1.0, "batch": batch, "protocol": SHORT, **fields}))
    assert record.status == "ok", record.reason
    assert record.verification.verdict == "passed"
    if "compression" in layout:
        assert record.observed.dtypes["reduction"] == "fp16"
    if fields.get("offload"):
        assert record.observed.devices["optimizer_state"] == "cpu"
        assert any(caveat.startswith("offload: ") for caveat in record.caveats)


def test_the_loss_after_a_number_of_samples(run: Callable[..., Record]):
    protocol = {**SHORT, "loss_samples": 256}
    optimizer = {"learning_rate": 1e-3, "scaling": "linear", "base_batch": 4}
    found = {}
    for layout in ("single", "dp=2:ddp"):
        record = run(cell(layout, batch={"global": 8, "sequence": 32}, optimizer=optimizer, protocol=protocol))
        assert record.status == "ok", record.reason
        assert record.observed.learning_rates == [2e-3]
        found[layout] = record.metrics["loss_after_samples"].value
    assert found["dp=2:ddp"] == pytest.approx(found["single"], rel=1e-3)
    assert found["single"] < record.verification.losses[0]  # 32 steps have taught it something


@pytest.mark.parametrize("layout", ["pp=2:gpipe,dp=4:zero1", "pp=2:zbv,dp=4:ddp"])
def test_copies_of_a_tied_weight_stay_equal_on_more_than_two_data_ranks(run: Callable[..., Record], layout: str):
    # Two terms have one sum; from three on its last bits depend on the order, and so on where in a buffer a copy lies.
    record = run(
        cell(layout, model="gpt2-tiny", batch={"global": 16, "microbatches": 4, "sequence": 32}, protocol={"measure_steps": 0})
    )
    assert record.status == "ok", record.reason
