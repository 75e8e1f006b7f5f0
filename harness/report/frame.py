"""Records as a table: one row per cell, with typed columns. What pictures, page and `summary.csv` are made from.

    frame([Run(name="a", records=...)]).to_csv("summary.csv")

No parity, no number: metrics are filled only where the cell ended ok.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from benchmarks.cell import CHECKPOINTING, PRECISIONS, Optimizer
from benchmarks.layout import Layout
from harness.record import Metric, Record
from harness.report.runs import Run
from harness.report.words import STATUS_WORDS, caveat_word, plain

ANATOMY = ("parameters", "gradients", "optimizer_state", "activations", "other")
"""What the memory at the peak is made of; metric `memory_<name>_bytes`."""

TEXT = ("run", "cell_id", "model", "layout", "series", "axes", "precision", "checkpointing", "technique", "variant", "label",
        "conditions", "status", "word", "verdict", "reason", "phase", "caveats", "caveat_words", "worst_parameter",
        "environment_id", "time", "command")  # fmt: skip
WHOLE = ("devices", "processes", "global_batch", "microbatches", "sequence", "failed_rank")
TRUTH = ("measured", "verified")
FIGURES = ("loss_error", "loss_tolerance", "gradient_norm_error", "gradient_norm_tolerance", "update_error", "update_tolerance",
           "step_seconds", "step_seconds_low", "step_seconds_high", "tokens_per_second", "tokens_per_second_low",
           "tokens_per_second_high", "tokens_per_second_per_device", "peak_memory_bytes",
           *(f"memory_{part}_bytes" for part in ANATOMY), "device_memory_bytes", "harness_seconds")  # fmt: skip
"""Columns that are always there; every other metric adds its own."""


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run and cell, in a lasting order: model, technique, devices, layout.

    Columns of note: `measured` a figure may be shown; `verified` it agrees with the single-device run; `word` what stands
    where a figure is missing; `series` the layout without degrees; `technique` precision and checkpointing; `variant` what
    else tells cells of one model apart; `label` layout and variant; `conditions` all that scaling must hold fixed.
    """
    rows = [_row(run.name, record) | {"device_memory_bytes": run.device_memory_bytes} for run in runs for record in run.records]
    table = pd.DataFrame(rows, columns=None if rows else [*TEXT, *WHOLE, *TRUTH, *FIGURES])
    for column in (*TEXT, *WHOLE, *TRUTH, *FIGURES):
        if column not in table:
            table[column] = None
    table["variant"] = _variants(table)
    table["label"] = [" · ".join(filter(None, both)) for both in zip(table["layout"], table["variant"], strict=True)]
    kinds = {**dict.fromkeys(TEXT, "string"), **dict.fromkeys(WHOLE, "Int64"), **dict.fromkeys(TRUTH, "bool")}
    rest = [column for column in table if column not in kinds]
    table = table.astype({**kinds, **dict.fromkeys(rest, "float64")})
    ranked = {
        "run": pd.Categorical(table["run"], [run.name for run in runs], ordered=True),
        "precision": pd.Categorical(table["precision"], PRECISIONS, ordered=True),
        "checkpointing": pd.Categorical(table["checkpointing"], CHECKPOINTING, ordered=True),
        "spread": table["layout"] != "single",
    }
    by = ["model", "precision", "checkpointing", "devices", "spread", "layout", "global_batch", "sequence", "microbatches"]
    order = table.assign(**ranked).sort_values([*by, "run"], kind="stable")
    head = [*TEXT, *WHOLE, *TRUTH]
    return table.loc[order.index, [*head, *rest]].reset_index(drop=True)


def _row(run: str, record: Record) -> dict[str, Any]:
    cell, check = record.cell, record.verification
    failed = check is None or check.verdict == "failed"
    measured = record.status == "ok" and not failed
    technique = cell.precision + ("" if cell.checkpointing == "none" else f", {cell.checkpointing} checkpointing")
    row = {
        "run": run,
        "cell_id": record.cell_id,
        "model": plain(cell.model),
        **_layout(cell.layout),
        "devices": cell.devices,
        "processes": cell.processes,
        "precision": cell.precision,
        "checkpointing": cell.checkpointing,
        "technique": technique,
        "global_batch": cell.batch.global_size,
        "microbatches": cell.batch.microbatches,
        "sequence": cell.batch.sequence,
        "conditions": _conditions(cell.batch.sequence, cell.clip, cell.optimizer, cell.seed, cell.data),
        "status": record.status,
        "word": _word(record, measured),
        "verdict": check.verdict if check else "none",
        "measured": measured,
        "verified": measured and check.verdict.startswith("passed"),
        "reason": record.reason or (check.why if check else None),
        "phase": record.phase,
        "failed_rank": record.failed_rank,
        "caveats": " | ".join(record.caveats),
        "caveat_words": " ".join(sorted({caveat_word(caveat) for caveat in record.caveats})),
        "environment_id": record.environment_id,
        "time": record.time,
        "command": cell.command(),
        "harness_seconds": sum(record.durations.values()),
    }
    if check:
        row |= {
            "loss_error": check.max_relative_loss_error,
            "gradient_norm_error": check.max_relative_gradient_norm_error,
            "update_error": check.max_update_error,
            "worst_parameter": check.worst_parameter,
            **{f"{name}_tolerance": value for name, value in check.tolerance.items()},
        }
    return row | (_metrics(record.metrics) if measured else {})


def _word(record: Record, measured: bool) -> str:
    """What a picture says of the cell beside, or in place of, its figure."""
    if measured:
        return "" if record.verification.verdict.startswith("passed") else "not comparable"
    return STATUS_WORDS[record.status] if record.status != "ok" else "unverified"


@lru_cache(maxsize=4096)  # a matrix has few layouts and fewer conditions, and many cells of each
def _layout(layout: Layout) -> dict[str, str]:
    """The layout, its axes, and its implementations and knobs without degrees: the cells of one scaling curve share these."""
    series = ",".join(re.sub("=[^:]*:", ":", str(axis), count=1) for axis in layout.axes) or "single"
    axes = "+".join(axis.axis for axis in layout.axes) or "single"
    return {"layout": plain(str(layout)), "series": plain(series), "axes": axes}


@lru_cache(maxsize=4096)
def _conditions(sequence: int, clip: float, optimizer: Optimizer, seed: int, data: str) -> str:
    fixed = {"sequence": sequence, "clip": clip, "optimizer": optimizer.model_dump(mode="json"), "seed": seed, "data": data}
    return json.dumps(fixed, sort_keys=True)


def _metrics(metrics: dict[str, Metric]) -> dict[str, float | None]:
    """Every metric by name with its interval; the anatomy of memory is that of the rank with the largest peak.

    What is no finite number is no figure.
    """
    taken = {*TEXT, *WHOLE, *TRUTH}
    metrics = {name: metric for name, metric in metrics.items() if math.isfinite(metric.value) and name not in taken}
    peaks = metrics["peak_memory_bytes"].per_rank if "peak_memory_bytes" in metrics else None
    largest = peaks.index(max(peaks)) if peaks else None
    row: dict[str, float | None] = {}
    for name, metric in metrics.items():
        row[name] = metric.value
        if name.startswith("memory_") and largest is not None and metric.per_rank and len(metric.per_rank) == len(peaks):
            row[name] = metric.per_rank[largest]
        if metric.low is not None and metric.high is not None and math.isfinite(metric.high - metric.low):
            row[f"{name}_low"], row[f"{name}_high"] = metric.low, metric.high
    return row


def _variants(table: pd.DataFrame) -> list[str]:
    """Per row, those of its settings beyond layout and technique that differ among cells of its model."""
    conditions = [json.loads(text) for text in table["conditions"]]
    settings = pd.DataFrame(
        {
            "batch": [f"batch {b}×{s}" for b, s in zip(table["global_batch"], table["sequence"], strict=True)],
            "microbatches": [f"m={m}" if m > 1 else "" for m in table["microbatches"]],
            "clip": [f"clip {c['clip']:g}" if c["clip"] else "" for c in conditions],
            "optimizer": [_optimizer(c["optimizer"]) for c in conditions],
            "seed": [f"seed {c['seed']}" for c in conditions],
            "data": [plain(c["data"]) for c in conditions],
        },
        index=table.index,
    )
    differs = settings.groupby(table["model"]).transform("nunique") > 1
    told = settings.where(differs, "")
    names = [" · ".join(filter(None, row)) for row in zip(*(told[name].tolist() for name in told), strict=True)]
    # Cells may differ in what has no short name, such as the protocol: their ids tell them apart.
    same = table[["run", "model", "technique", "layout"]].assign(name=names).duplicated(keep=False)
    return [" · ".join(filter(None, (n, c[:6] if s else ""))) for n, c, s in zip(names, table["cell_id"], same, strict=True)]


def _optimizer(settings: dict[str, Any]) -> str:
    scaling = "" if settings["scaling"] == "none" else f" {settings['scaling']}"
    return f"{settings['name']} {settings['learning_rate']:g}{scaling}"
