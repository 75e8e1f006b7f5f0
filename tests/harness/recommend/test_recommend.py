"""What a run speaks for, on records whose answer was worked out by hand."""

import json

import pytest

from benchmarks.cell import Batch
from harness import store
from harness.cli import main
from harness.recommend import recommend
from harness.recommend.text import as_json, as_text
from tests.harness.report.conftest import make_record, store_run

GPU = {"caveats": ()}


def record(layout: str, tokens: float = 1000, mib: float = 10, **given):
    """A verified cell on GPUs with a peak of `mib`; its interval is 5 % to either side."""
    return make_record(layout, tokens=tokens, parts=(mib, 0, 0, 0, 0), **{**GPU, **given})


RUN = [
    record("single", 1000, 40),
    record("dp=4:ddp", 3800, 36),
    record("dp=4:fsdp", 3700, 12),  # 3515 to 3885 overlaps with 3610 to 3990
    record("tp=4:hand", 2000, 10),
    record("tp=2:hand", 1500, 20),
    record("pp=4:1f1b", status="oom", phase="warmup", reason="rank 0 ran out of memory"),
    record("pp=2:gpipe", verdict="not comparable", reason="the widths differ"),
    record("tp=8:hand", status="skipped", reason="2 heads cannot be cut 8 ways"),
    record("dp=2:zero1", status="diverged", reason="update error 0.7"),
]


def advice(tmp_path, records=RUN, **options):
    return recommend(store.read(store_run(tmp_path / "run", *records)), **options)


def named(choices) -> list[str]:
    return [choice.name.split(" ")[0] for choice in choices]


def test_of_those_as_fast_as_the_fastest_the_leanest_is_best(tmp_path):
    (model,) = advice(tmp_path).models
    assert (model.model, model.global_batch, model.sequence, model.asked, model.verified) == ("llama-tiny", 8, 64, 9, 5)
    assert model.best.name == "dp=4:fsdp in fp32"
    assert model.best.why == (
        "as fast as dp=4:ddp in fp32 (3,800 tokens/s with 36 MiB) as far as this run can tell, and leaner; "
        "3,700 tokens/s (95 % interval 3,515 to 3,885); 12 MiB a device at its peak; "
        "3.7 times one device in the same techniques, 92% of ideal on 4"
    )
    assert named(model.alternatives) == ["dp=4:ddp", "tp=4:hand"]  # the rest of the Pareto front
    assert model.alternatives[1].why == "2,000 tokens/s with 10 MiB; 54% of the best one's speed; 83% of its memory"


def test_what_is_ruled_out_says_why(tmp_path):
    (model,) = advice(tmp_path).models
    assert {(r.name.split(" ")[0], r.kind, r.why) for r in model.ruled_out} == {
        ("pp=4:1f1b", "out of memory", "rank 0 ran out of memory"),
        ("pp=2:gpipe", "not comparable", "the widths differ"),
        ("tp=8:hand", "skipped", "2 heads cannot be cut 8 ways"),
        ("dp=2:zero1", "diverged", "update error 0.7"),
        ("single", "dominated", "dp=4:ddp in fp32 does at least as well in both (3,800 tokens/s with 36 MiB)"),
        ("tp=2:hand", "dominated", "dp=4:fsdp in fp32 does at least as well in both (3,700 tokens/s with 12 MiB)"),
    }
    assert model.asked == 1 + len(model.alternatives) + len(model.ruled_out)


def test_memory_as_the_objective_and_as_a_limit(tmp_path):
    (model,) = advice(tmp_path, objective="memory").models
    assert model.best.name == "tp=4:hand in fp32"
    assert model.best.why.startswith("least memory of 5 cells; 2,000 tokens/s")
    assert "53% of the speed of dp=4:ddp" in model.best.why
    assert named(model.alternatives) == ["dp=4:ddp", "dp=4:fsdp"]
    (model,) = advice(tmp_path / "2", memory_bytes=11 * 2**20).models
    assert model.best.name == "tp=4:hand in fp32" and model.alternatives == []
    exceeding = [r for r in model.ruled_out if r.kind == "exceeds the memory given"]
    assert named(exceeding) == ["single", "dp=4:ddp", "dp=4:fsdp", "tp=2:hand"]
    assert {r.why for r in exceeding} == {"more than 11 MiB a device at its peak"}


def test_a_process_that_drives_several_devices_is_judged_by_their_mean(tmp_path):
    alone = record("pp=4:devices", 900, 40)
    alone = alone.model_copy(update={"cell": alone.cell.model_copy(update={"processes": 1})})
    (model,) = advice(tmp_path, [alone]).models
    assert model.best.memory_bytes == 10 * 2**20 and "10 MiB (mean of its devices) a device" in model.best.why


def test_only_cells_of_the_same_work_are_set_against_each_other(tmp_path):
    found = advice(tmp_path, [record("single", batch=Batch(global_size=n)) for n in (8, 16)])
    assert [(m.global_batch, m.best.name) for m in found.models] == [(8, "single in fp32"), (16, "single in fp32")]


def test_nothing_verified_is_nothing_recommended(tmp_path):
    found = advice(tmp_path, [record("dp=4:ddp", status="crashed", reason="KeyError")])
    assert found.models[0].best is None and found.models[0].verified == 0
    assert "nothing can be recommended" in as_text(found)
    assert "nothing can be recommended" in as_text(advice(tmp_path / "2", []))


TECHNIQUES = [
    record("dp=4:ddp", 1000, 20),
    record("dp=4:ddp", 2000, 12, precision="bf16"),  # half the step, 0.6 of the peak
    record("dp=4:fsdp", 1000, 10),
    record("dp=4:fsdp", 4000, 8, precision="bf16"),  # a quarter, 0.8
    record("dp=4:ddp", 1500, 6, precision="bf16", checkpointing="full"),  # 4/3 of bf16's step, half the peak
    record("tp=4:hand", status="oom", reason="rank 0 ran out of memory"),
    record("tp=4:hand", 500, 30, checkpointing="full"),
    record("pp=4:1f1b", 500, 30),
    record("pp=4:1f1b", status="diverged", reason="update error 0.7", precision="fp16"),
]


def test_techniques_are_judged_by_pairs_that_differ_in_nothing_else(tmp_path):
    found = {one.technique: one for one in advice(tmp_path, TECHNIQUES).techniques}
    assert set(found) == {"bf16 instead of fp32", "fp16 instead of fp32", "checkpointing full instead of none"}
    bf16 = found["bf16 instead of fp32"]
    assert (bf16.pairs, bf16.time.median, bf16.time.least, bf16.time.most) == (2, 0.375, 0.25, 0.5)
    assert (bf16.memory.median, bf16.memory.least, bf16.memory.most) == pytest.approx((0.7, 0.6, 0.8))
    assert bf16.advice == "choose it: faster and leaner"
    assert bf16.example == "dp=4:ddp: 512 ms to 256 ms a step, 20 MiB to 12 MiB"
    checkpointing = found["checkpointing full instead of none"]
    assert checkpointing.pairs == 1 and checkpointing.made_fit == ["tp=4:hand"]
    assert checkpointing.advice == (
        "choose it where memory is short: it saves 50% of the peak for 33% more time; "
        "it made 1 layout fit that ran out of memory without it"
    )
    assert found["fp16 instead of fp32"].failed == ["pp=4:1f1b"]
    assert found["fp16 instead of fp32"].advice == "nothing is known of what it buys here"


@pytest.mark.parametrize(
    "tokens, mib, advice_given",
    [
        (2000, 20, "choose it where memory suffices: it takes 0.5 times the time"),
        (2000, 10, "choose it: faster"),
        (1000, 8, "choose it: leaner"),
        (500, 10, "leave it: slower"),
        (500, 20, "leave it: slower and fuller"),
        (1010, 10.1, "it changes little here"),
    ],
)
def test_when_to_choose_a_technique(tmp_path, tokens, mib, advice_given):
    (one,) = advice(tmp_path, [record("single", 1000, 10), record("single", tokens, mib, precision="bf16")]).techniques
    assert one.advice == advice_given


def test_a_run_on_cpus_does_not_rank(tmp_path):
    found = advice(tmp_path, [make_record("single"), make_record("dp=2:ddp", tokens=1800)])
    assert not found.ranks
    text = as_text(found)
    assert text.startswith("CPU run: it proves the strategies and the harness and does not rank them.")
    assert "fastest here: dp=2:ddp in fp32" in text and "best:" not in text
    assert advice(tmp_path / "2").ranks and "best: dp=4:fsdp" in as_text(advice(tmp_path / "3"))


def test_cells_that_were_left_out_are_not_forgotten(tmp_path):
    folder = store_run(tmp_path / "run", *RUN)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "cells": [{}] * (len(RUN) + 3)}))
    found = recommend(store.read(folder))
    assert found.without_record == 3
    assert f"3 cells of the run left out or not yet run, so this may change: hpbench run --resume {folder}" in as_text(found)


def test_text_and_json_hold_the_same(tmp_path):
    found = advice(tmp_path, RUN + TECHNIQUES[4:5])
    text, data = as_text(found), json.loads(as_json(found))
    assert data["schema"] == 1 and data["ranks"] is True and data["objective"] == "throughput"
    (model,) = data["models"]
    for one in [model["best"], *model["alternatives"], *model["ruled_out"]]:
        assert one["cell"] in text and one["why"] in text


def test_on_the_command_line(tmp_path, capsys):
    folder = store_run(tmp_path / "run", *RUN)
    assert main(["recommend", str(folder), "--memory", "11MiB"]) == 0
    assert "best: tp=4:hand in fp32" in capsys.readouterr().out
    assert main(["recommend", str(folder), "--objective", "memory", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["models"][0]["best"]
    assert best["cell"] in {r.cell_id for r in store.read(folder).records} and best["memory_bytes"] == 10 * 2**20
