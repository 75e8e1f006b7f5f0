"""The JSON of pytest-benchmark, as `pytest benchmarks --benchmark-json` writes it: `pytest-benchmark compare` reads it, and
so does `--benchmark-compare`, which matches cells by `fullname`."""

from __future__ import annotations

import json
from typing import Any

from pytest_benchmark import __version__
from pytest_benchmark.stats import Stats

from harness.export import extra_info, latest, names
from harness.record import Record
from harness.store import Run

TEST = "benchmarks/test_cells.py::test_cell"
"""The test that measures cells under pytest."""


def export(run: Run) -> str:
    """The cells that ended ok, with all their samples. The machine is the one where they were measured."""
    records = latest(run.records)
    titles = names(records)
    environment = run.environment
    commit = environment.get("suite_commit") or "unknown"
    content = {
        "machine_info": {
            "node": environment.get("host"),
            "processor": environment.get("processor"),
            "machine": str(environment.get("site", {}).get("kind")),
            "python_implementation": "CPython",
            "python_version": environment.get("python"),
            "system": environment.get("system"),
            "cpu": {"brand_raw": environment.get("processor"), "count": environment.get("cores")},
            "hpbench_environment": environment,
        },
        "commit_info": {"id": commit.rstrip("+"), "dirty": commit.endswith("+"), "time": None, "branch": None},
        "benchmarks": [_benchmark(r, titles[r.cell_id]) for r in records if r.status == "ok" and r.samples.step_seconds],
        "datetime": str(run.run.get("time", "")),
        "version": __version__,
    }
    return json.dumps(content, indent=1) + "\n"


def _benchmark(record: Record, title: str) -> dict[str, Any]:
    stats = Stats()
    for seconds in record.samples.step_seconds:
        stats.update(seconds)
    return {
        "group": record.cell.model,
        "name": f"test_cell[{title}]",
        "fullname": f"{TEST}[{title}]",
        "params": None,
        "param": title,
        "extra_info": extra_info(record),
        "options": {"disable_gc": True, "timer": "hpbench", "min_rounds": 1, "max_time": 0.0, "min_time": 0.0, "warmup": False},
        "stats": {**stats.as_dict(), "data": stats.data, "iterations": 1},
    }
