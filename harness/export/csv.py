"""CSV in long form, for spreadsheets and databases: one row for each cell and metric, and one for each cell without figures."""

from __future__ import annotations

import io

import pandas as pd

from harness.compare.verdicts import title
from harness.export import latest
from harness.store import Run


def export(run: Run) -> str:
    """Columns: run, environment, commit, time, cell_id, name, model, layout, status, reason, metric, value, low, high, unit."""
    rows = []
    for record in latest(run.records):
        about = {
            "run": record.run_id,
            "environment": record.environment_id,
            "commit": run.environment.get("suite_commit"),
            "time": record.time,
            "cell_id": record.cell_id,
            "name": title(record.cell),
            "model": record.cell.model,
            "layout": str(record.cell.layout),
            "status": record.status,
            "reason": record.reason,
        }
        metrics = record.metrics.items() if record.status == "ok" else ()
        figures = [{"metric": n, "value": m.value, "low": m.low, "high": m.high, "unit": m.unit} for n, m in metrics]
        rows += [about | figure for figure in figures or [dict.fromkeys(("metric", "value", "low", "high", "unit"))]]
    buffer = io.StringIO()
    pd.DataFrame(rows).to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue()
