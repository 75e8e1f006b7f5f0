"""DeepSpeed and FairScale beside each other: parity on four processes, knobs and offload; what is missing takes only its own
cells, and what a framework prints is in the rank's log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.layout import Layout
from harness.record import Record
from tests.parity.conftest import cell

ROOT = Path(__file__).parents[2]
SHORT = {"warmup_steps": 1, "measure_steps": 1, "measure_seconds": 0, "probe": False}
VERIFY_ONLY = {"measure_steps": 0}
SMALL = "bucket_elements=5000"
KNOBS = [
    ("dp=4:zero3[hierarchical=2]", {}),
    (f"dp=2:zero1[{SMALL}]", {}),
    (f"dp=2:zero2[{SMALL},overlap_comm=true,contiguous_gradients=false,round_robin_gradients=true]", {}),
    (f"dp=2:zero3[{SMALL},prefetch_elements=5000,persistence_elements=1000,overlap_comm=false]", {}),
    ("dp=2:zero2", {"offload": "optimizer"}),
    ("dp=2:zero3", {"offload": "optimizer"}),
    ("dp=2:zero3", {"offload": "parameters"}),
    ("dp=2:fairscale-sdp[reduce_buffer_elements=0]", {}),
    ("dp=2:fairscale-sdp[reduce_buffer_elements=2000]", {}),
    ("dp=2:fairscale-fsdp[reshard=false,bucket_mb=0]", {}),
    ("dp=2:fairscale-fsdp[mixed=bf16]", {"precision": "bf16", "checkpointing": "fairscale"}),
    ("dp=4:fairscale-fsdp[mixed=fp16,fp32_reduce_scatter=false,flatten=false]", {"precision": "fp16"}),
    ("pp=4:fairscale[checkpoint=always],dp=2:zero1", {"precision": "bf16"}),
    ("pp=2:fairscale[balance=time]", {"checkpointing": "fairscale", "offload": "activations", "precision": "fp16"}),
    ("pp=2:zbv,tp=2:fairscale[loss=true]", {"precision": "bf16", "batch": {"global": 16, "microbatches": 4, "sequence": 32}}),
    ("tp=2:hand,dp=2:fairscale-fsdp[flatten=false]", {}),
    ("dp=2:fairscale-oss", {"offload": "optimizer"}),
]
FOUR = ["zero0", "zero1", "zero2", "zero3", "fairscale-oss", "fairscale-sdp", "fairscale-fsdp"]
DEEPSPEED = {"zero0", "zero1", "zero2", "zero3", "deepspeed", "autotp"}
PACKAGES = ("deepspeed", "fairscale", "transformers")


@pytest.mark.parametrize("name", FOUR)
def test_four_ranks(run: Callable[..., Record], name: str):
    batch = {"global": 16, "microbatches": 2, "sequence": 32}
    record = run(cell(f"dp=4:{name}", batch=batch, clip=1.0, protocol=VERIFY_ONLY))
    assert record.status == "ok", record.reason
    assert record.verification.max_relative_loss_error <= 1e-6
    assert record.verification.max_relative_gradient_norm_error <= 1e-5
    assert record.verification.max_update_error <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "fields"), KNOBS)
def test_knobs_and_offload(run: Callable[..., Record], layout: str, fields: dict[str, Any]):
    batch = {"global": 16, "microbatches": 2, "sequence": 32}
    record = run(cell(layout, **{"model": "gpt2-tiny", "batch": batch, "clip": 1.0, "protocol": VERIFY_ONLY, **fields}))
    assert record.status == "ok", record.reason
    assert record.verification.verdict == "passed"


HYBRIDS = [
    ("pp=4:fairscale[checkpoint=except_last],dp=2:ddp", "none", 3 * 4),  # microbatches x blocks
    ("pp=2:gpipe,tp=2:fairscale,dp=2:ddp", "none", 0),  # FairScale would number these ranks otherwise
    ("pp=2:manual,tp=2:fairscale[loss=true]", "fairscale", 4 * 4),
]


@pytest.mark.parametrize(("layout", "checkpointing", "repeated"), HYBRIDS)
def test_hybrids_of_fairscale(run: Callable[..., Record], layout: str, checkpointing: str, repeated: int):
    batch = {"global": 16, "microbatches": 4, "sequence": 32}
    record = run(cell(layout, model="gpt2-tiny", batch=batch, clip=1.0, checkpointing=checkpointing, protocol=SHORT))
    assert record.status == "ok", record.reason
    assert record.verification.max_relative_loss_error <= 1e-6
    assert record.verification.max_relative_gradient_norm_error <= 1e-5
    assert record.verification.max_update_error <= 1e-3
    assert record.observed.recomputed_forwards == repeated
    assert record.observed.microbatches == 4


@pytest.mark.parametrize(
    ("fault", "said"),
    [("unwatched_threads", "no compute at all"), ("threads_without_autocast", "compute in fp32")],
)
def test_threads_that_are_not_told(run: Callable[..., Record], fault: str, said: str):
    batch = {"global": 8, "microbatches": 2, "sequence": 32}
    record = run(cell("pp=2:fairscale", precision="bf16", batch=batch, protocol=SHORT), f"tests.parity.faults:{fault}")
    assert record.status == "diverged" and said in record.reason, record.reason


def test_the_record_says_how_the_balance_came_out(run: Callable[..., Record]):
    batch = {"global": 8, "microbatches": 2, "sequence": 32}
    record = run(cell("pp=2:fairscale[balance=time],dp=2:ddp", batch=batch, protocol=SHORT))
    assert record.status == "ok", record.reason
    (said,) = (caveat for caveat in record.caveats if caveat.startswith("balance by time: "))
    stages = said.removeprefix("balance by time: ").split(" | ")
    assert len(stages) == 2 and " ".join(stages).split() == ["embedding", *(f"block{i}" for i in range(4)), "head"]


def test_the_record_says_what_its_own_mixed_precision_changes(run: Callable[..., Record]):
    batch = {"global": 8, "microbatches": 2, "sequence": 32}
    layout = "dp=2:fairscale-fsdp[mixed=bf16,fp32_reduce_scatter=false]"
    record = run(cell(layout, precision="bf16", batch=batch, protocol=SHORT))
    assert record.status == "ok", record.reason
    dtypes = record.observed.dtypes
    assert (dtypes["reduction"], dtypes["parameters"], dtypes["optimizer_state"]) == ("bf16", "bf16+fp32", "fp32")


def test_the_record_says_how_the_framework_was_set_up(run: Callable[..., Record]):
    batch = {"global": 8, "microbatches": 2, "sequence": 32}
    record = run(cell("dp=2:zero2[overlap_comm=true]", batch=batch, clip=0.5, protocol=SHORT))
    assert record.status == "ok", record.reason
    knobs = record.observed.knobs["dp"]
    assert knobs["overlap_comm"] is True
    assert knobs["configuration"]["gradient_clipping"] == 0.5
    assert knobs["configuration"]["zero_optimization"]["stage"] == 2
    assert record.observed.dtypes["optimizer_state"] == record.observed.dtypes["reduction"] == "fp32"


def test_the_record_says_what_was_mended_to_run_here(run: Callable[..., Record]):
    batch = {"global": 8, "microbatches": 1, "sequence": 32}
    record = run(cell("dp=2:fairscale-fsdp", batch=batch, protocol=SHORT))
    assert record.status == "ok", record.reason
    assert sum(caveat.startswith("shim: ") for caveat in record.caveats) == 2


JUDGE = """
import json, re, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from benchmarks.compose import illegal
from benchmarks.site import Site
from harness import matrix, suites
site = Site(kind="cpu", count=4)
cells = {(c.model, str(c.layout), c.checkpointing): c for c in matrix.expand(suites.load("frameworks"), site)}
print("ANSWER", json.dumps([(*key, illegal(c, site)) for key, c in cells.items()]))
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_framework_takes_only_its_own_cells(package: str):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, package], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answer = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER"))
    for model, layout, checkpointing, reason in json.loads(answer.partition(" ")[2]):
        mine = {
            "deepspeed": any(a.implementation in DEEPSPEED for a in Layout.parse(layout).axes) or checkpointing == "deepspeed",
            "fairscale": ":fairscale" in layout or checkpointing == "fairscale",
            "transformers": model.startswith("hf-"),
        }
        assert (reason is not None) == mine[package], (model, layout, checkpointing)
        assert reason is None or reason.endswith(f"pip install {package}"), reason


def test_what_a_framework_prints_is_in_the_log(tmp_path: Path):
    command = [sys.executable, "-m", "harness.cli", "run", "--layout", "dp=2:zero2", "--batch", "8", "--sequence", "32"]
    command += ["--set", "protocol.measure_steps=0", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [path.read_text() for path in (tmp_path / "run" / "logs").glob("*/rank0.log")]
    assert any("You are using ZeRO with an untested optimizer" in log for log in logs)
    assert "ZeRO" not in done.stdout + done.stderr and "WARNING" not in done.stdout + done.stderr
