"""Hand-made records: what a run would leave behind, with round numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cell import Batch, Cell
from benchmarks.layout import Layout
from harness.record import Metric, Observed, Record, Samples, Verification
from harness.report.runs import Run

MIB = 2**20
TOLERANCE = {"loss": 1e-6, "gradient_norm": 1e-5, "update": 1e-3}


def make_record(
    layout: str = "single",
    *,
    tokens: float = 1000.0,
    spread: float = 0.05,
    parts: tuple[float, ...] = (4, 4, 8, 2, 1),
    status: str = "ok",
    verdict: str = "passed",
    errors: tuple[float | None, ...] = (2e-7, 6e-8, 7e-5),
    batch: Batch | None = None,
    caveats: tuple[str, ...] = ("cpu: gloo on shared cores",),
    environment: str = "machine-1",
    **given,
) -> Record:
    """One record.

    Args:
        tokens: tokens per second; its interval is `spread` of it to either side.
        parts: MiB of parameters, gradients, optimizer state, activations, other at the peak of rank 0; other ranks hold half.
        errors: of loss, gradient norm and update.
        given: fields of the record (`reason`, `phase`, ...) or of the cell.
    """
    about_record = {name: given.pop(name) for name in list(given) if name in Record.model_fields}
    spread_as = Layout.parse(layout)
    batch = batch or Batch(global_size=8, sequence=64)
    cell = Cell(layout=spread_as, devices=spread_as.devices, processes=spread_as.devices, batch=batch, **given)
    record = {"run_id": "run", "cell_id": cell.id, "time": "2025-01-02T03:04:05Z", "environment_id": environment, "cell": cell,
              "status": status, "caveats": list(caveats)} | about_record  # fmt: skip
    if status in ("ok", "diverged"):
        record["verification"] = Verification(
            reference="0" * 12, model=cell.model, losses=[5.5, 5.4, 5.3], reference_losses=[5.5, 5.4, 5.3],
            gradient_norms=[3.0, 3.1, 3.2], reference_gradient_norms=[3.0, 3.1, 3.2], max_relative_loss_error=errors[0],
            max_relative_gradient_norm_error=errors[1], max_update_error=errors[2], worst_parameter="block0.norm.weight",
            tolerance=TOLERANCE, verdict="failed" if status == "diverged" else verdict, why=about_record.get("reason"),
        )  # fmt: skip
    if status == "ok":
        seconds = batch.global_size * batch.sequence / tokens
        record |= {"metrics": _metrics(tokens, spread, parts, cell.devices, seconds)}
        record |= {"samples": Samples(step_seconds=[seconds] * 3)}
        record |= {"durations": {"start": 0.3, "verify": 1.0, "measure": 1.5}}
        record["observed"] = Observed(
            dtypes={"parameters": "float32", "compute": "float32"},
            collectives={"dp": {"all_reduce": {"count": 2, "bytes": 3 * MIB}}} if spread_as.degree("dp") > 1 else {},
            microbatches=batch.microbatches,
            stages=[["embedding", "block0"], ["block1", "head"]] if spread_as.get("pp") else [],
        )  # fmt: skip
    return Record(**record)


def _metrics(tokens: float, spread: float, parts: tuple[float, ...], devices: int, seconds: float) -> dict[str, Metric]:
    names = ("parameters", "gradients", "optimizer_state", "activations", "other")
    sizes = {f"memory_{name}_bytes": part * MIB for name, part in zip(names, parts, strict=True)}
    sizes["peak_memory_bytes"] = sum(parts) * MIB
    memory = {
        name: Metric(value=size, unit="bytes", per_rank=[size] + [size / 2] * (devices - 1)) for name, size in sizes.items()
    }
    return memory | {
        "tokens_per_second": Metric(value=tokens, unit="tokens/s", low=tokens * (1 - spread), high=tokens * (1 + spread)),
        "tokens_per_second_per_device": Metric(value=tokens / devices, unit="tokens/s"),
        "step_seconds": Metric(value=seconds, unit="s", low=seconds * 0.9, high=seconds * 1.1),
        "final_loss": Metric(value=5.25, unit="nats"),
    }


def make_run(*records: Record, name: str = "run") -> Run:
    """A run in memory."""
    environment = {"cpu": {"model": "Test CPU", "cores": 2}, "versions": {"torch": "2.13.0"}}
    return Run(name=name, records=records, environment=environment, about={"suite": "smoke"})


def store_run(folder: Path, *records: Record) -> Path:
    """A run folder."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "suite": "smoke"}))
    (folder / "environment.json").write_text(json.dumps({"cpu": {"model": "Test CPU", "cores": 2}}))
    (folder / "records.jsonl").write_text("".join(record.to_line() + "\n" for record in records))
    return folder


def every_kind() -> list[Record]:
    """Records of every way in which a cell can end, on 1 to 8 devices."""
    return [
        make_record("single", tokens=1000, parts=(8, 8, 16, 4, 2)),
        make_record("dp=2:ddp", tokens=1800, parts=(8, 8, 16, 2, 2)),
        make_record("dp=4:ddp", tokens=3000, parts=(8, 8, 16, 1, 2)),
        make_record("dp=8:ddp", tokens=4000, parts=(8, 8, 16, 1, 2), caveats=("cpu: gloo", "oversubscribed: 8 on 2 cores")),
        make_record("dp=2:fsdp", tokens=1700, parts=(4, 4, 8, 2, 1)),
        make_record("tp=2:hand", tokens=1500, status="ok", verdict="not comparable", reason="the widths differ"),
        make_record("dp=4:fsdp", status="oom", phase="warmup", failed_rank=3, reason="rank 3 ran out of memory"),
        make_record("tp=4:hand", status="skipped", reason="2 key-value heads cannot be cut 4 ways"),
        make_record("pp=2:1f1b", status="timeout", phase="measure", reason="no step ended within 900 s"),
        make_record("pp=2:gpipe", status="crashed", phase="build", failed_rank=1, reason="KeyError", log_tail="Traceback ..."),
        make_record("dp=2:zero1", status="diverged", phase="verify", errors=(4e-3, 2e-2, 0.7), reason="update error 0.7"),
    ]


@pytest.fixture(scope="session")
def factory():
    """Makers of records and runs: `factory.record`, `.run`, `.store`, `.every_kind`."""

    class Factory:
        record = staticmethod(make_record)
        run = staticmethod(make_run)
        store = staticmethod(store_run)
        every_kind = staticmethod(every_kind)

    return Factory
