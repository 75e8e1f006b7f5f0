"""AutoTP: which layers it is told to cut and what it is left to hold, and that a copied sum is not summed again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.compose import illegal, knobs
from tests.parity.conftest import SITE, cell


def kinds(model: str, degree: int) -> dict[str, dict[str, Any]]:
    """What AutoTP is told of some weights: the first rule whose pattern fits, as it looks them up."""
    rules = knobs(cell(f"tp={degree}:autotp", model=model))["tp"]["configuration"]["layer_specs"]
    names = ["embedding.token", "block0.attention.query", "block0.attention.output", "block1.mlp.down", "head.linear"]
    found = {}
    for name in names:
        fit = (rule for rule in rules if any(re.match(pattern, f"{name}.weight") for pattern in rule["patterns"]))
        found[name] = {key: value for key, value in next(fit, {}).items() if key != "patterns"}
    return found


COLUMN, ROW, WHOLE = {"partition_type": "column"}, {"partition_type": "row"}, {}


@pytest.mark.parametrize(
    ("model", "degree", "head"),
    [
        ("llama-tiny", 2, {**COLUMN, "gather_output": True}),
        ("gpt2-tiny", 2, WHOLE),  # tied to the embedding
        ("llama-tiny[vocabulary=257]", 2, WHOLE),  # which 2 does not divide
    ],
)
def test_what_is_cut(model: str, degree: int, head: dict[str, Any]):
    names = ["embedding.token", "block0.attention.query", "block0.attention.output", "block1.mlp.down", "head.linear"]
    assert kinds(model, degree) == dict(zip(names, [WHOLE, COLUMN, ROW, ROW, head], strict=True))


def test_selective_checkpointing_is_refused():
    reason = illegal(cell("tp=2:autotp", checkpointing="selective", batch={"global": 8, "sequence": 32}), SITE)
    assert reason is not None and "sums the ranks' products in place" in reason and "choose full or every-2" in reason
