"""The list of figures that github-action-benchmark keeps: `[{"name", "unit", "value", "range", "extra"}]`.

https://github.com/benchmark-action/github-action-benchmark, tools `customBiggerIsBetter` and `customSmallerIsBetter`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.export import latest, names
from harness.store import Run


def entries(run: Run, metrics: Sequence[str]) -> str:
    """These metrics of all cells that have them."""
    records = latest(run.records)
    titles = names(records)
    found = []
    for record in records:
        for name in metrics:
            metric = record.metrics.get(name)
            if record.status != "ok" or metric is None:
                continue
            entry = {"name": f"{titles[record.cell_id]}: {name}", "unit": metric.unit, "value": metric.value}
            if metric.low is not None and metric.high is not None:
                entry["range"] = f"{metric.low:.6g} to {metric.high:.6g}"
            parity = record.verification.verdict if record.verification else "none"
            entry["extra"] = f"cell {record.cell_id}, environment {record.environment_id}, parity {parity}"
            found.append(entry)
    return json.dumps(found, indent=1) + "\n"
