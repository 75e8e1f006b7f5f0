"""OpenMetrics text, for a Prometheus push gateway or the node exporter's text files: a gauge for each metric, labelled by
cell."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest

from harness.export import latest
from harness.store import Run
from harness.table import techniques

UNITS = {"s": "seconds", "bytes": "bytes"}
"""Units that the format asks a name to end in; other figures carry theirs in the help text."""
LABELS = ("cell_id", "model", "layout", "techniques", "devices", "environment", "commit")


class _Run:
    """Gives a run's figures once, as `CollectorRegistry` wants them."""

    def __init__(self, run: Run):
        self._run = run

    def collect(self) -> list[GaugeMetricFamily]:
        records = latest(self._run.records)
        state = GaugeMetricFamily(
            "hpbench_cell_ok", "1 where the cell was verified and measured, else 0.", labels=[*LABELS, "status"]
        )
        families: dict[str, GaugeMetricFamily] = {}
        for record in records:
            cell = record.cell
            labels = [record.cell_id, cell.model, str(cell.layout), techniques(cell), str(cell.devices), record.environment_id]
            labels.append(str(self._run.environment.get("suite_commit")))
            state.add_metric([*labels, record.status], float(record.status == "ok"))
            if record.status != "ok":
                continue
            for name, metric in record.metrics.items():
                if name not in families:
                    unit = UNITS.get(metric.unit, "")
                    base = re.sub(r"[^a-zA-Z0-9_]", "_", f"hpbench_{name}")
                    full = base if not unit or base.endswith(f"_{unit}") else f"{base}_{unit}"
                    families[name] = GaugeMetricFamily(full, f"{name} in {metric.unit}.", labels=LABELS, unit=unit)
                families[name].add_metric(labels, metric.value)
        return [state, *families.values()]


def export(run: Run) -> str:
    """The text, which ends in `# EOF`."""
    registry = CollectorRegistry()
    registry.register(_Run(run))
    return generate_latest(registry).decode()
