"""Findings of ranks, written by hand, put together and held against what was asked for."""

from __future__ import annotations

import copy
from typing import Any

from benchmarks.cell import Cell
from harness.observation import merge, problem

ALL_FP32 = {subject: ["fp32"] for subject in ("parameters", "compute", "gradients", "reduction", "optimizer_state")}

ON_CPU = {subject: ["cpu"] for subject in ("parameters", "gradients", "optimizer_state")}


def finding(
    *, pp: int = 0, dp: int = 0, tp: int = 0, index: int = 0, blocks: Any = None, forwards: int = 1, **fields: Any
) -> Any:
    blocks = {f"block{index}": 1} if blocks is None else blocks
    part = {"index": index, "units": list(blocks), "forwards": forwards, "blocks": blocks}
    made = {
        "dtypes": ALL_FP32,
        "devices": ON_CPU,
        "learning_rates": [1e-3],
        "collectives": {},
        "attention_backend": "flash",
        "splits_backward": False,
        "parts": [part],
        **fields,
    }
    return copy.deepcopy({**made, "coordinates": {"pp": pp, "dp": dp, "tp": tp}})


def told(findings: list[Any], **cell: Any) -> str | None:
    observed = merge(findings, knobs={}, data={})
    return problem(observed, findings, Cell.model_validate(cell))


def test_stages_and_recomputations_are_counted_over_one_data_and_tensor_rank() -> None:
    # 2 stages x 2 data ranks, 2 microbatches, every block repeated once for each.
    findings = [
        finding(pp=pp, dp=dp, index=pp, forwards=2, blocks={f"block{2 * pp}": 4, f"block{2 * pp + 1}": 4})
        for pp in (0, 1)
        for dp in (0, 1)
    ]
    observed = merge(findings[::-1], knobs={"dp": {"bucket_mb": 25}}, data={"source": "x"})
    assert observed.stages == [["block0", "block1"], ["block2", "block3"]]
    assert (observed.microbatches, observed.checkpointed_blocks, observed.recomputed_forwards) == (2, 4, 8)
    assert observed.knobs == {"dp": {"bucket_mb": 25}}


def test_dtypes_that_differ_between_ranks_are_all_told() -> None:
    odd = finding(dp=1, dtypes={**ALL_FP32, "compute": ["bf16"]})
    assert merge([finding(), odd], knobs={}, data={}).dtypes["compute"] == "bf16+fp32"


def test_what_was_asked_for_and_seen_is_no_problem() -> None:
    assert told([finding()]) is None
    mixed = {**ALL_FP32, "compute": ["bf16"]}
    repeated = finding(dtypes=mixed, forwards=2, blocks={"block0": 4})
    assert told([repeated], precision="bf16", checkpointing="full", batch={"microbatches": 2}) is None


def test_a_precision_that_was_not_seen() -> None:
    assert told([finding()], precision="bf16") == "bf16 was asked for, and compute in fp32 was observed where bf16 is meant"
    pure = finding(dtypes={subject: ["bf16"] for subject in ALL_FP32})
    assert told([pure], precision="bf16") == "bf16 was asked for, and parameters in bf16 was observed where fp32 is meant"


def test_data_ranks_that_reduce_nothing() -> None:
    silent = finding(dtypes={**ALL_FP32, "reduction": []})
    assert told([silent]) is None
    assert told([silent, silent], layout="dp=2:ddp") == (
        "fp32 was asked for, and no reduction at all was observed where fp32 is meant"
    )


def test_checkpointing_that_repeats_nothing_or_too_much() -> None:
    assert told([finding()], checkpointing="full") == (
        "checkpointing full was asked for, and 0 recomputed forwards of block0 observed on rank 0 where 1 are meant"
    )
    assert "where 0 are meant" in (told([finding(blocks={"block0": 2})]) or "")
    one_of_two = finding(blocks={"block0": 2, "block1": 1})
    assert "recomputed forwards of block1" in (told([one_of_two], checkpointing="full") or "")


def test_a_split_backward_may_repeat_a_forward_twice() -> None:
    def split(calls: int) -> Any:
        return finding(splits_backward=True, blocks={"block0": calls})

    assert told([split(2)], checkpointing="full") is told([split(3)], checkpointing="full") is None
    assert "where 1 to 2 are meant" in (told([split(4)], checkpointing="full") or "")
    assert "where 1 to 2 are meant" in (told([split(1)], checkpointing="full") or "")
    assert "where 0 are meant" in (told([split(2)]) or "")


def test_microbatches_that_were_not_seen_on_a_later_rank() -> None:
    findings = [finding(forwards=4, blocks={"block0": 4}), finding(pp=1, index=1)]
    assert told(findings, batch={"microbatches": 4}) == (
        "4 microbatches were asked for, and 1 forwards of stage 1 observed on rank 1"
    )


def test_a_knob_may_change_what_the_precision_means() -> None:
    reduced = [finding(dtypes={**ALL_FP32, "compute": ["bf16"], "reduction": ["fp16"]})]
    asked = Cell.model_validate({"layout": "dp=2:ddp[compression=fp16]", "precision": "bf16"})
    observed = merge(reduced, knobs={}, data={})
    assert problem(observed, reduced, asked, {"reduction": "fp16"}) is None
    assert "reduction in fp16" in problem(observed, reduced, asked)


def test_an_offload_that_leaves_the_state_on_the_device() -> None:
    on_device = [finding(devices={**ON_CPU, "parameters": ["cuda"], "optimizer_state": ["cuda"]})]
    assert told(on_device) is None
    assert "optimizer state on cuda" in told(on_device, offload="optimizer")
    assert "parameters on cuda" in told(on_device, offload="parameters")
    moved = [finding(devices={**ON_CPU, "parameters": ["cuda"]})]
    assert told(moved, offload="optimizer") is None


def test_the_learning_rate_is_the_one_that_the_batch_asks_for() -> None:
    scaled = {"optimizer": {"learning_rate": 1e-3, "scaling": "linear"}, "batch": {"global": 16}}
    assert "learning rate of 0.002" in told([finding()], **scaled)
    assert told([finding(learning_rates=[2e-3])], **scaled) is None
