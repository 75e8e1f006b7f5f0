"""Techniques that cannot go together are refused with what lies upstream."""

import pytest

from benchmarks.compose import illegal
from benchmarks.contract import DTENSOR, SPLITS_BACKWARD
from benchmarks.techniques.limits import problem
from tests.parity.conftest import SITE, cell


@pytest.mark.parametrize(
    ("fields", "trait", "reason"),
    [
        ({"compile": "block"}, DTENSOR, "use compile=model"),
        ({"compile": "model"}, DTENSOR, None),
        ({"compile": "block"}, None, None),
        ({"compile": "model"}, SPLITS_BACKWARD, "choose a schedule with whole backwards"),
        ({"compile": "block", "offload": "activations"}, None, "leave one of the two out"),
        ({"checkpointing": "selective"}, SPLITS_BACKWARD, "hands out what it kept once"),
        ({"checkpointing": "full"}, SPLITS_BACKWARD, None),
        ({"offload": "activations", "checkpointing": "selective"}, None, None),
        ({"offload": "activations", "checkpointing": "deepspeed"}, None, "keeps the inputs of blocks by itself"),
        ({"compile": "block", "checkpointing": "deepspeed"}, None, "where torch.compile ends a program"),
        ({"checkpointing": "deepspeed"}, SPLITS_BACKWARD, "asks autograd for some gradients and not for all"),
        ({"checkpointing": "deepspeed"}, None, None),
    ],
)
def test_what_goes_together(fields: dict[str, str], trait: str | None, reason: str | None):
    found = problem(cell("single", **fields), frozenset({trait} - {None}))
    assert found is None if reason is None else reason in found


def test_a_layout_is_asked_for_its_traits():
    assert "use compile=model" in illegal(cell("tp=2:dtensor", compile="block"), SITE)
    assert illegal(cell("tp=2:hand", compile="block"), SITE) is None
