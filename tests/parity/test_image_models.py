"""Models of images under every implementation once, alone and in a hybrid of each kind, in every precision; and what of
batch norm can be compared with one device, and what cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.cell import Cell
from benchmarks.compose import illegal
from benchmarks.registry import AXES
from harness.record import Record
from tests.parity.conftest import SITE, cell, each, part_of_layout, quick

SHORT = {"warmup_steps": 1, "measure_steps": 1, "measure_seconds": 0, "probe": False}
VERIFY_ONLY = {"measure_steps": 0}
ALONE = ["single", *(part_of_layout(axis, name) for axis in AXES for name in quick(axis))]
HYBRIDS = ["pp=2:gpipe,dp=2:fsdp", "pp=2:manual,dp=2:ddp", "pp=2:devices,dp=2:zero1", "tp=2:hand,dp=2:fsdp"]
WHOLE = "pp=2:1f1b,tp=2:dtensor,dp=2:ddp"
TOLERANCE = {
    "mlp": {"fp32": (1e-6, 1e-5, 1e-3), "bf16": (5e-3, 2e-2, 2e-2), "fp16": (5e-3, 2e-2, 2e-2)},
    "resnet": {"fp32": (1e-5, 1e-3, 5e-3), "bf16": (2e-2, 1e-1, 4e-1), "fp16": (5e-3, 2e-2, 5e-2)},
}
"""Loss, gradient norm, update: written again here, so that no change of the policy goes unseen."""


def cells() -> Iterator[Cell]:
    """Legal cells; techniques take turns, so that each meets each kind of layout."""
    techniques = [("fp32", "none", 0.0), ("bf16", "full", 1.0), ("fp16", "none", 1.0), ("fp32", "full", 0.0)]
    for model, microbatches in (("mlp-tiny", 4), ("resnet-tiny[synchronised=true]", 1)):
        for i, layout in enumerate([*ALONE, *HYBRIDS, WHOLE]):
            precision, checkpointing, clip = techniques[i % len(techniques)]
            batch = {"global": 16, "microbatches": microbatches}
            fields: dict[str, Any] = {"precision": precision, "checkpointing": checkpointing, "clip": clip, "batch": batch}
            made = cell(layout, model=model, protocol=SHORT, **fields)
            if illegal(made, SITE) is None:
                yield made


CELLS = list(cells())


def _like_a_llama(c: Cell) -> bool:
    return str(c.layout) in ALONE and (c.model == "mlp-tiny" or str(c.layout).startswith("pp="))


def test_what_is_left_out_has_its_reason():
    layouts = {model: {str(c.layout) for c in CELLS if c.model.startswith(model)} for model in ("mlp", "resnet")}
    asked = {*ALONE, *HYBRIDS, WHOLE}
    assert layouts["mlp"] == asked
    # No tensor plan cuts convolutions; 1F1B and DualPipeV on two processes take two microbatches and four, which batch norm
    # would see one by one.
    refused = ("tp=", "1f1b", "dualpipev")
    assert layouts["resnet"] == {layout for layout in asked if not any(word in layout for word in refused)}


@pytest.mark.parametrize(
    "c",
    # A norm over the batch asks something of data strategies alone; what else a layout does, a llama asks, too.
    [pytest.param(c, marks=pytest.mark.slow if _like_a_llama(c) else ()) for c in CELLS],
    ids=lambda c: f"{c.model.split('-')[0]}-{c.layout}-{c.precision}-{c.checkpointing}",
)
def test_parity(run: Callable[..., Record], c: Cell):
    record = run(c)
    assert record.status == "ok", record.reason
    v, family = record.verification, c.model.split("-")[0]
    assert v.verdict == {"mlp": "passed", "resnet": "passed (smooth)"}[family]
    loss, norm, update = TOLERANCE[family][c.precision]
    assert v.max_relative_loss_error <= loss
    assert v.max_relative_gradient_norm_error <= norm
    assert v.max_update_error <= update
    assert min(v.reference_gradient_norms) > 3, "an unasked clip at 1.0 would not be seen"
    assert record.observed.data["source"] == "scikit-learn digits"
    assert "samples_per_second" in record.metrics and "tokens_per_second" not in record.metrics


@pytest.mark.parametrize(
    ("layout", "model", "microbatches", "said"),
    [
        ("dp=2:ddp", "resnet-tiny", 1, "local batch norm"),
        ("single", "resnet-tiny", 2, "one of 2 microbatches"),
        ("pp=2:1f1b,dp=2:fsdp", "resnet-tiny[synchronised=true]", 2, "one of 2 microbatches"),
    ],
)
def test_another_function_is_not_comparable(run: Callable[..., Record], layout: str, model: str, microbatches: int, said: str):
    record = run(cell(layout, model=model, batch={"global": 16, "microbatches": microbatches}, protocol=SHORT))
    assert record.status == "ok", record.reason
    assert record.verification.verdict == "not comparable" and said in record.verification.why
    assert record.verification.max_update_error > 0.01, "if it were the same function, it could be compared"
    assert record.metrics["samples_per_second"].value > 0


@pytest.mark.parametrize("layout", ["single", "pp=2:gpipe"])
def test_local_batch_norm_on_whole_batches_is_comparable(run: Callable[..., Record], layout: str):
    record = run(cell(layout, model="resnet-tiny", batch={"global": 16}, protocol=VERIFY_ONLY))
    assert (record.status, record.verification.verdict) == ("ok", "passed (smooth)")
    assert record.verification.model == "resnet-tiny[smooth=true]"


@pytest.mark.parametrize("layout", each("dp"))
@pytest.mark.parametrize("precision", ["fp32", *(pytest.param(p, marks=pytest.mark.slow) for p in ("bf16", "fp16"))])
def test_a_norm_that_forgets_the_other_ranks(run: Callable[..., Record], layout: str, precision: str):
    asked = cell(
        layout,
        model="resnet-tiny[synchronised=true]",
        precision=precision,
        batch={"global": 16},
        protocol=VERIFY_ONLY,
    )
    record = run(asked, "tests.parity.faults:local_norms")
    assert record.status == "diverged", record.reason
    assert record.verification.verdict == "failed"
