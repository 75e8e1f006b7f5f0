"""Compiled cells are verified and observed like all others; each compiles for half a minute and more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.record import Record
from tests.parity.conftest import cell

SHORT = {"warmup_steps": 1, "measure_steps": 1, "measure_seconds": 0, "probe": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ("single", {"compile": "block", "checkpointing": "full"}),
        ("single", {"compile": "model", "checkpointing": "selective", "precision": "bf16"}),
        ("dp=2:fsdp", {"compile": "block"}),
        ("dp=2:ddp", {"compile": "model", "clip": 1.0}),
        ("tp=2:hand[sequence=true]", {"compile": "block"}),
        ("tp=2:dtensor[loss=true,sequence=true]", {"compile": "model"}),
        ("pp=2:gpipe", {"compile": "block"}),
        ("pp=2:traced-1f1b", {"compile": "model"}),
        ("pp=2:traced-1f1b,dp=2:fsdp", {"compile": "block", "checkpointing": "full", "precision": "bf16"}),
    ],
)
def test_compiled(run: Callable[..., Record], layout: str, fields: dict[str, object]):
    batch = {"global": 8, "microbatches": 2, "sequence": 32}
    record = run(cell(layout, model="llama-tiny[blocks=2]", batch=batch, protocol=SHORT, **fields))
    assert record.status == "ok", record.reason
    assert record.verification.verdict == "passed"
    assert record.observed.compiled_graphs > 0
    assert any(caveat.startswith("watched: ") for caveat in record.caveats)
