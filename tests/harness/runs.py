"""Records and run folders made up for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.layout import Layout
from harness.record import Metric, Observed, Record, Samples, Verification

NOON = "2025-01-01T12:00:00Z"
ENVIRONMENT = {
    "id": "one",
    "processor": "Made Up 9000",
    "cpu_capability": "AVX2",
    "site": {"kind": "cpu", "frameworks": {"torch": "2.13.0"}},
    "suite_commit": "0" * 40,
}


def made(
    layout: str = "dp=2:ddp",
    *,
    seconds: float = 1.0,
    peak: float = 1000,
    loss: float = 5.0,
    norm: float = 4.0,
    last: float = 3.0,
    calls: int = 3,
    steps: int = 3,
    status: str = "ok",
    environment: str = "one",
    time: str = NOON,
    **fields: Any,
) -> Record:
    """A record. `seconds`: the median step; `loss` and `norm`: verified; `last`: the loss after all timed steps."""
    spread = Layout.parse(layout)
    cell = Cell(layout=spread, devices=spread.devices, processes=spread.devices)
    figures: dict[str, Any] = {}
    if status == "ok":
        times = sorted([seconds] * (steps - 1) + [9 * seconds])
        figures = {
            "samples": Samples(step_seconds=times),
            "metrics": {
                "step_seconds": Metric(value=seconds, unit="s", low=0.9 * seconds, high=1.1 * seconds),
                "tokens_per_second": Metric(value=512 / seconds, unit="tokens/s"),
                "peak_memory_bytes": Metric(value=peak, unit="bytes"),
                "final_loss": Metric(value=last, unit="nats"),
            },
            "observed": Observed(collectives={"dp": {"all_reduce": {"count": calls, "bytes": 64}}} if calls else {}),
            "verification": Verification(
                reference="0" * 12, model=cell.model, losses=[6.0, loss], gradient_norms=[5.0, norm], verdict="passed"
            ),
        }
    figures |= {
        "run_id": "run",
        "reason": None if status == "ok" else "it was so",
        "durations": {"start": 0.5, "measure": 1.5},
        **fields,
    }
    return Record(cell_id=cell.id, time=time, environment_id=environment, cell=cell, status=status, **figures)


def stored(folder: Path, *records: Record, **environment: Any) -> Path:
    """A run folder of these records."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "run_id": folder.name, "suite": "mine", "time": NOON}))
    (folder / "environment.json").write_text(json.dumps({**ENVIRONMENT, **environment}))
    (folder / "records.jsonl").write_text("".join(record.to_line() + "\n" for record in records))
    return folder
