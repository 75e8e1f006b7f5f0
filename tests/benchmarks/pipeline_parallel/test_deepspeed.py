"""DeepSpeed's schedule: the order in which stages work, what is left to the replica, what the record says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.compose import illegal, knobs
from tests.benchmarks.test_ranks import ranks
from tests.parity.conftest import SITE, cell


# By hand: stage i of N runs N - i forwards before its first backward, and there may be fewer microbatches than stages.
@pytest.mark.parametrize(
    ("microbatches", "orders"),
    [(1, ["F L", "F L", "F L"]), (4, ["F F F B F B B L", "F F B F B F B L", "F B F B F B F L"])],
)
def test_order_of_forwards_and_backwards(launcher: Any, tmp_path: Path, microbatches: int, orders: list[str]):
    batch = {"global": 8, "microbatches": microbatches, "sequence": 32}
    assert [answer["done"] for answer in ranks(launcher, "order", "pp=3:deepspeed", tmp_path, batch=batch)] == orders


def test_the_record_says_how_the_engine_was_set_up():
    batch = {"global": 24, "microbatches": 4, "sequence": 32}
    configuration = knobs(cell("pp=2:deepspeed,dp=2:ddp", batch=batch))["pp"]["configuration"]
    assert configuration["train_micro_batch_size_per_gpu"] == 3
    assert configuration["gradient_accumulation_steps"] == 4


@pytest.mark.parametrize("stage", [2, 3])
def test_what_reduces_in_every_backward_is_refused(stage: int):
    batch = {"global": 8, "microbatches": 2, "sequence": 32}
    reason = illegal(cell(f"pp=2:deepspeed,dp=2:zero{stage}", batch=batch), SITE)
    assert reason == (
        f"dp=2:zero{stage}: ZeRO-{stage} reduces gradients in every backward, and DeepSpeed refuses it under a pipeline, where "
        "that would be once for each microbatch (deepspeed/runtime/pipe/engine.py): use stage 0 or 1 beside a pipeline"
    )
