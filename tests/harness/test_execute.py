"""Real cells, whole and broken: each leaves exactly one record that says what happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness.execute import run_cell
from harness.launch.entry import Place
from harness.launch.local import Launcher
from harness.launch.outcome import Failure
from harness.record import Record
from harness.references import References
from harness.statistics import median
from tests.harness.conftest import QUICK, quick_cell

SITE = Site(kind="cpu", count=2)
SMALL = {"model": "llama-tiny[blocks=2]", "batch": {"global": 4, "sequence": 32}}
Go = Callable[..., Record]


@pytest.fixture(scope="module")
def kept(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(launcher, tmp_path_factory.mktemp("references"), SITE)


@pytest.fixture
def go(launcher: Launcher, kept: References, tmp_path: Path) -> Go:
    def run(cell: Cell, *instruments: str, **replaced: Any) -> Record:
        context = {"launcher": launcher, "site": SITE, "references": kept, "run_folder": tmp_path}
        context |= {"run_id": "test", "environment_id": "0123456789ab", **replaced}
        names = [f"tests.harness.instruments:{name}" for name in instruments]
        record = run_cell(cell, instruments=names, **context)
        assert Record.from_line(record.to_line()) == record
        assert (record.run_id, record.cell_id, record.environment_id) == ("test", cell.id, "0123456789ab")
        return record

    return run


def test_a_cell_that_is_right_has_everything(go: Go, tmp_path: Path) -> None:
    phases: list[str] = []
    cell = quick_cell("dp=2:ddp", **{**SMALL, "batch": {"global": 4, "microbatches": 2, "sequence": 32}})
    record = go(cell, on_phase=phases.append)
    assert record.status == "ok", record.reason
    assert record.verification is not None and record.verification.verdict == "passed"
    assert phases == ["build", "verify", "build", "probe", "warmup", "measure"]
    assert set(record.durations) == {"start", "build", "verify", "probe", "warmup", "measure"}
    assert (len(record.samples.step_seconds), len(record.samples.warmup_seconds)) == (3, 2)
    assert (tmp_path / "logs" / cell.id / "rank1.log").exists()
    observed = record.observed
    assert observed is not None and observed.microbatches == 2 and observed.data["source"] == "python-stdlib"
    assert set(observed.dtypes.values()) == {"fp32"}
    metrics = record.metrics
    assert metrics["peak_memory_bytes"].per_rank is not None and len(metrics["peak_memory_bytes"].per_rank) == 2
    assert metrics["step_seconds"].value == median(record.samples.step_seconds)
    assert any(caveat.startswith("cpu:") for caveat in record.caveats)
    assert not any(caveat.startswith("oversubscribed:") for caveat in record.caveats)


def test_memory_of_whole_and_of_sharded_copies_is_as_counted_by_hand(go: Go) -> None:
    """llama-tiny with two blocks, hidden 64: a block has two norms of 64, query and output of 64 x 64, key and value of
    64 x 32 (half the heads), and three MLP matrices of 64 x 192: 49,280 weights. Outside there are embedding and head of
    256 x 64 and a norm of 64: 32,832. AdamW keeps two values for each, and a counter for each of 21 parameters."""
    block, rest = 49_280 * 4, 32_832 * 4
    whole, counters = 2 * block + rest, 21 * 4
    ddp, fsdp = (go(quick_cell(f"dp=2:{name}", **SMALL)) for name in ("ddp", "fsdp"))
    found = {name: metric.value for name, metric in ddp.metrics.items()}
    assert found["memory_parameters_bytes"] == whole
    assert found["memory_gradients_bytes"] == whole
    assert found["memory_optimizer_state_bytes"] == 2 * whole + counters
    assert ddp.observed is not None and ddp.observed.collectives["dp"]["all_reduce"]["bytes"] == whole
    found = {name: metric.value for name, metric in fsdp.metrics.items()}
    assert found["memory_parameters_bytes"] == whole / 2 + rest + block  # gathered: the root, and one block at a time
    assert found["memory_optimizer_state_bytes"] == 2 * whole / 2 + counters


def test_more_processes_than_cores_are_told(go: Go) -> None:
    record = go(quick_cell("tp=2:hand,dp=2:ddp", **{**SMALL, "protocol": {**QUICK, "probe": False}}))
    assert record.status == "ok", record.reason
    assert "oversubscribed: 4 processes on 2 cores" in record.caveats
    assert "peak_memory_bytes" not in record.metrics and "step_seconds" in record.metrics


def test_checkpointing_is_seen_and_costs_arithmetic(go: Go) -> None:
    record = go(quick_cell("single", checkpointing="full", **SMALL))
    assert record.status == "ok", record.reason
    assert record.observed is not None
    assert (record.observed.checkpointed_blocks, record.observed.recomputed_forwards) == (2, 2)
    assert record.metrics["hardware_flops_per_second"].value > record.metrics["model_flops_per_second"].value


def test_a_model_too_large_for_one_device_is_verified_shallow(go: Go) -> None:
    cell = quick_cell("dp=2:ddp", **{**SMALL, "model": "llama-tiny", "protocol": {**QUICK, "reference_bytes": 1}})
    record = go(cell)
    assert record.status == "ok", record.reason
    assert record.verification is not None
    assert (record.verification.verdict, record.verification.model) == ("passed (shallow)", "llama-tiny[blocks=2]")


def test_without_timed_steps_a_cell_is_verified_only(go: Go) -> None:
    record = go(quick_cell("single", **{**SMALL, "protocol": {**QUICK, "measure_steps": 0}}))
    assert (record.status, record.metrics, record.observed) == ("ok", {}, None)
    assert record.verification is not None and record.verification.verdict == "passed"


def test_a_wrong_gradient_ends_the_cell_as_diverged(go: Go) -> None:
    record = go(quick_cell("dp=2:ddp", **SMALL), "louder")
    assert (record.status, record.phase) == ("diverged", "verify")
    assert record.verification is not None and record.verification.worst_parameter == "block1.mlp_norm.weight"
    assert record.reason is not None and "block1.mlp_norm.weight" in record.reason
    assert record.metrics == {} and record.samples.step_seconds == []


@pytest.mark.parametrize(
    ("instrument", "status", "reason"),
    [
        ("raising", "crashed", "rank 1 in verify raised RuntimeError: the network cable is out"),
        ("greedy", "oom", "rank 1 in build ran out of memory"),
        ("vanishing", "crashed", "rank 1 in build ended with exit status 0 and no result"),
        ("hanging", "timeout", "rank 1 did not finish verify in 3 s: "),
    ],
)
def test_a_rank_that_fails_is_named(go: Go, instrument: str, status: str, reason: str) -> None:
    cell = quick_cell("dp=2:ddp", **{**SMALL, "protocol": {**QUICK, "verify_limit": 3}})
    record = go(cell, instrument)
    assert record.status == status
    assert record.reason is not None and record.reason.startswith(reason)
    assert record.failed_rank == 1
    assert record.phase == ("build" if "build" in reason else "verify")


def test_a_loss_that_is_no_number_is_no_measurement(go: Go) -> None:
    record = go(quick_cell("single", **SMALL), "lossless")
    assert (record.status, record.phase) == ("diverged", "verify")
    assert record.verification is not None and record.verification.losses == []


def test_a_reference_that_fails_is_the_reason(go: Go) -> None:
    failure = Failure(status="oom", reason="rank 0 in build ran out of memory", rank=0, phase="build")

    class Failing(References):
        def get(self, cell: Cell, threads: int, place: Place | None = None) -> Failure:
            return failure

    record = go(quick_cell("single", **SMALL), references=Failing(None, Path(), SITE))  # type: ignore[arg-type]
    assert (record.status, record.phase) == ("oom", "verify")
    assert record.reason == "the single-device reference failed: rank 0 in build ran out of memory"


def test_a_fault_of_the_harness_is_a_record_too(go: Go) -> None:
    record = go(quick_cell("single", **SMALL), launcher=None)
    assert record.status == "crashed"
    assert record.reason is not None and record.reason.startswith("the harness itself failed with AttributeError")
    assert record.log_tail is not None and "Traceback" in record.log_tail


def test_a_reference_is_trained_once_for_all_cells_that_share_it(launcher: Launcher, tmp_path: Path, monkeypatch: Any) -> None:
    calls = []
    call = launcher.call
    monkeypatch.setattr(launcher, "call", lambda *a, **k: calls.append(a) or call(*a, **k))
    references = References(launcher, tmp_path, SITE)
    one, two, other = (Cell.model_validate({**SMALL, **f}) for f in ({}, {"checkpointing": "full"}, {"precision": "bf16"}))
    assert references.get(one, 1) is references.get(two, 1)
    assert references.get(one, 1) != references.get(other, 1)
    assert len(calls) == 2


def test_figures_come_from_timed_work(go: Go) -> None:
    """50 ms asleep inside backward on rank 1 stand in the step time, and so in both ranks' figures, within 5 %.

    Every other step sleeps, so that a machine's drift is in both kinds, and the fastest of each kind are compared, as
    other work on the machine only ever adds to a step. Where it never leaves the cores alone a run says nothing; of three,
    one must.
    """
    cell = quick_cell(
        "dp=2:ddp",
        model="llama-tiny[blocks=1]",
        batch={"global": 2, "sequence": 8},
        protocol={**QUICK, "measure_steps": 60, "probe": False},
    )
    differences = []
    for _ in range(3):
        record = go(cell, "asleep_in_backward")
        assert record.status == "ok", record.reason
        steps = record.samples.step_seconds
        plain, slept = sorted((min(steps[::2]), min(steps[1::2])))
        differences.append(slept - plain)
        if differences[-1] == pytest.approx(0.05, rel=0.05):
            break
    assert differences[-1] == pytest.approx(0.05, rel=0.05), differences
    per_rank = record.metrics["step_seconds"].per_rank
    assert per_rank is not None and min(per_rank) > plain
