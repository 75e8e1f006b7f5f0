"""A run as Markdown, fit for a comment or for `$GITHUB_STEP_SUMMARY`: a table of cells, and why some have no figures."""

from __future__ import annotations

from collections import Counter

from harness.compare.markdown import table
from harness.compare.verdicts import title
from harness.export import latest
from harness.record import Record
from harness.report.words import STATUS_WORDS, amount, number, with_interval
from harness.store import Run

HEADER = ("model, layout, techniques", "status", "step", "throughput", "peak memory", "parity")


def export(run: Run) -> str:
    """The text; what a figure of a CPU is worth stands below it."""
    records = sorted(latest(run.records), key=lambda record: title(record.cell))
    counts = Counter(STATUS_WORDS[record.status] for record in records)
    said = ", ".join(f"{n} {word}" for word, n in counts.most_common()) or "no cell"
    lines = [f"### hpbench: {run.run.get('suite', run.folder.name)}", "", said, "", *table(HEADER, [_row(r) for r in records])]
    caveats = dict.fromkeys(caveat for record in records for caveat in record.caveats if caveat.startswith("cpu"))
    ended = [f"{title(record.cell)}: {record.reason}" for record in records if record.reason]
    return "\n".join([*lines, "", *(f"- {' '.join(line.split())}" for line in [*ended, *caveats])]).rstrip() + "\n"


def _row(record: Record) -> tuple[str, ...]:
    metrics = record.metrics if record.status == "ok" else {}
    step, memory = metrics.get("step_seconds"), metrics.get("peak_memory_bytes")
    speed = metrics.get("tokens_per_second") or metrics.get("samples_per_second")
    return (
        title(record.cell),
        STATUS_WORDS[record.status],
        with_interval(step) if step else "–",
        f"{number(speed.value)} {speed.unit}" if speed else "–",
        amount(memory.value, memory.unit) if memory else "–",
        record.verification.verdict if record.verification else "–",
    )
