"""Where ranks that hang were, and which of them keeps the others waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch.stacks import Whereabouts, odd_one_out, whereabouts
from tests.harness.launch.test_outcome import stack

C10D = "torch/distributed/distributed_c10d.py"


def test_a_collective_is_named_by_its_public_name_and_by_who_called_it() -> None:
    found = whereabouts(stack(C10D, "all_gather"))
    assert found == Whereabouts(text="all_gather (measure.py:9 in _time)", waits="all_gather")


def test_a_wait_for_a_functional_collective_is_one() -> None:
    assert whereabouts(stack("torch/distributed/_functional_collectives.py", "wait_tensor")).waits == "wait_tensor"


def test_a_backward_may_be_waiting_inside_autograd() -> None:
    found = whereabouts(stack("torch/autograd/graph.py", "_engine_run_backward"))
    assert found == Whereabouts(text="backward (measure.py:9 in _time)", waits="backward")


def test_a_wait_for_what_was_begun_before_is_read_from_the_line(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("\n" * 6 + "work.wait()\n")
    text = stack("x", "run").replace("/site-packages/x", str(tmp_path / "pipeline.py"))
    assert whereabouts(text) == Whereabouts(text="what was sent or received before (measure.py:9 in _time)", waits="wait")


def test_anything_else_is_no_wait() -> None:
    assert whereabouts(stack("torch/nn/functional.py", "linear")).waits is None
    assert whereabouts("") is None
    assert whereabouts("Thread 0x1 (most recent call first):\n  <no Python frame>\n") is None


@pytest.mark.parametrize(
    ("waits", "culprit"),
    [
        (["all_reduce", None], 1),
        ([None, "backward"], 0),
        ([None, None], None),
        (["all_reduce", "all_reduce"], None),
        (["all_reduce", "broadcast"], None),  # either may be the one that went astray
        (["all_reduce", "broadcast", "all_reduce"], 1),
        (["all_reduce", "broadcast", "barrier"], None),
        (["all_reduce", "missing"], None),
        ([None], None),
    ],
)
def test_who_keeps_the_others_waiting(waits: list[str | None], culprit: int | None) -> None:
    found = {rank: None if name == "missing" else Whereabouts(text="", waits=name) for rank, name in enumerate(waits)}
    assert odd_one_out(found) == culprit
