"""What each rank of llama-15m on four processes holds falls as theory says: tracked tensors, in bytes, against sums by hand.

Sequences are short, so that a step is fullest when gradients and optimizer state are all there, and not in the logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.test_ranks import ranks

# llama-15m: a vocabulary of 32000 x 256, tied; 8 blocks of query and output 256 x 256, key and value 128 x 256, three
# matrices of 768 x 256 and two norms of 256; a norm.
EMBEDDING, BLOCK, NORM = 4 * 32000 * 256, 4 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 768 * 256 + 2 * 256), 4 * 256
PARAMETERS = EMBEDDING + 8 * BLOCK + NORM
"""Bytes of the parameters on a single device; gradients take as many, and AdamW's state twice as many."""
HELD = ("parameters", "gradients", "optimizer_state")


def held(bytes_by_purpose: dict[str, int]) -> int:
    return sum(bytes_by_purpose[purpose] for purpose in HELD)


@pytest.fixture
def measured(launcher: Any, tmp_path: Path) -> Any:
    """Rank -> `peak` and `rest` of a layout."""

    def measure(layout: str, **fields: Any) -> list[dict[str, dict[str, int]]]:
        batch = {"global": 4, "sequence": 8}
        return ranks(launcher, "memory", layout, tmp_path, model="llama-15m", **{"batch": batch, **fields})

    return measure


def test_a_single_device_holds_all(measured: Any):
    (rank,) = measured("single")
    assert held(rank["peak"]) == pytest.approx(4 * PARAMETERS, rel=1e-3)


@pytest.mark.parametrize(("layout", "shards"), [("dp=4:fsdp", 4), pytest.param("dp=2x2:hsdp", 2, marks=pytest.mark.slow)])
def test_fully_sharded_data_parallelism_holds_its_share(measured: Any, layout: str, shards: int):
    # The largest unit is what is left around the blocks. It is whole at the peak, beside its shard, and so is its gradient.
    unit = EMBEDDING + NORM
    for rank in measured(layout):
        share = 4 * PARAMETERS / shards
        assert held(rank["peak"]) == pytest.approx(share + unit + unit * (1 - 1 / shards), rel=0.05)
        assert held(rank["rest"]) == pytest.approx(0.75 * share, rel=0.01)  # without gradients


@pytest.mark.slow
def test_the_older_wrapper_holds_its_share_at_rest(measured: Any):
    # Its flattened gradients stay until the next step's.
    for rank in measured("dp=4:fsdp1"):
        assert held(rank["rest"]) == pytest.approx(4 * PARAMETERS / 4, rel=0.05)


def test_native_zero_shares_the_optimizer_state_by_whole_parameters(measured: Any):
    found = measured("dp=4:zero1-native")
    states = sorted(rank["peak"]["optimizer_state"] for rank in found)
    assert sum(states) == pytest.approx(2 * PARAMETERS, rel=1e-3)
    # The embedding is more than a quarter of the model, and one rank owns it; the others share the rest.
    assert states[-1] == pytest.approx(2 * EMBEDDING, rel=0.05)
    for state in states[:-1]:
        assert state == pytest.approx(2 * (PARAMETERS - EMBEDDING) / 3, rel=0.05)
    for rank in found:
        assert rank["rest"]["parameters"] == pytest.approx(PARAMETERS, rel=0.05)


def test_tensor_parallelism_holds_its_share(measured: Any):
    for rank in measured("tp=4:hand"):
        assert held(rank["peak"]) == pytest.approx(4 * PARAMETERS / 4, rel=0.1)


def test_pipeline_stages_hold_their_share(measured: Any):
    # By FLOPs the output layer is worth more than all blocks, so six go with the embedding, and its tied copy is a stage.
    stages = [EMBEDDING + 6 * BLOCK, BLOCK, BLOCK, EMBEDDING + NORM]
    found = [held(rank["peak"]) for rank in measured("pp=4:manual")]
    assert found == [pytest.approx(4 * stage, rel=0.1) for stage in stages]


def test_an_optimizer_on_the_host_keeps_a_copy_beside_the_state(measured: Any):
    # On a CPU the host is the device: what would leave a GPU is still counted, and the master copy among the parameters.
    (rank,) = measured("single", offload="optimizer")
    assert rank["rest"]["optimizer_state"] == pytest.approx(2 * PARAMETERS, rel=1e-3)
    assert rank["rest"]["parameters"] == pytest.approx(2 * PARAMETERS, rel=1e-3)
