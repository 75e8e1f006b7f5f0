"""What a technique bought: pairs of cells of one run that differ in it and in nothing else.

    bf16 instead of fp32    time = step of the bf16 cell / step of the fp32 cell, memory the same; medians over the pairs

A pair counts where both cells are verified and timed. Beside them stand the cells that only ran with the technique, having
run out of memory without it, and those that ran only without.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cell import CHECKPOINTING, PRECISIONS
from harness.recommend.figures import Seen
from harness.report.words import amount, number
from harness.table import counted

WORDS = {
    "precision": "{to} instead of {base}",
    "checkpointing": "checkpointing {to} instead of {base}",
    "offload": "offload {to} instead of {base}",
    "compile": "compile {to} instead of {base}",
    "microbatches": "{to} microbatches instead of {base}",
}
"""Field of a cell, or of its batch -> how a change of it is written."""

ORDER: dict[str, Sequence[str]] = {"precision": PRECISIONS, "checkpointing": CHECKPOINTING}
"""Plainest first; other fields go by `none` first, then by size."""

MATTERS = 0.02
"""A change by less than this part is not spoken of as one."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Of the cells with a technique to those without, over the pairs."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Bought:
    """What one technique bought for one model."""

    model: str
    technique: str
    """For example `bf16 instead of fp32`."""
    pairs: int
    time: Ratio | None
    memory: Ratio | None
    example: str | None
    """The pair that saved most memory (or else time), with its figures."""
    made_fit: list[str]
    """Layouts that ran out of memory without it."""
    failed: list[str]
    """Layouts that ran only without it."""
    advice: str


def bought(cells: Sequence[Seen]) -> list[Bought]:
    """Every technique of which the cells hold a pair, by model."""
    pairs: dict[tuple[str, str], list[tuple[Seen, Seen]]] = {}
    for field in WORDS:
        alike: dict[str, list[Seen]] = {}
        for cell in cells:
            alike.setdefault(_all_but(cell, field), []).append(cell)
        for group in alike.values():
            base, *others = sorted(group, key=lambda cell: _plainness(field, _value(cell, field)))  # noqa: B023
            for other in others:
                words = WORDS[field].format(to=_value(other, field), base=_value(base, field))
                pairs.setdefault((base.record.cell.model, words), []).append((base, other))
    summaries = [_summary(model, words, found) for (model, words), found in pairs.items()]
    return [summary for summary in summaries if summary.pairs or summary.made_fit or summary.failed]


def _summary(model: str, words: str, pairs: Sequence[tuple[Seen, Seen]]) -> Bought:
    timed = [(base, cell) for base, cell in pairs if base.step_seconds and cell.step_seconds]
    probed = [(base, cell) for base, cell in timed if base.memory_bytes and cell.memory_bytes]
    time = _ratio([cell.step_seconds / base.step_seconds for base, cell in timed])  # type: ignore[operator]
    memory = _ratio([cell.memory_bytes / base.memory_bytes for base, cell in probed])  # type: ignore[operator]
    made_fit = [str(cell.record.cell.layout) for base, cell in pairs if base.record.status == "oom" and cell.verified]
    broken = ("oom", "timeout", "crashed", "diverged")
    failed = [str(cell.record.cell.layout) for base, cell in pairs if base.verified and cell.record.status in broken]
    return Bought(
        model=model,
        technique=words,
        pairs=len(timed),
        time=time,
        memory=memory,
        example=_example(probed or timed),
        made_fit=made_fit,
        failed=failed,
        advice=_advice(time, memory, made_fit),
    )


def _ratio(values: Sequence[float]) -> Ratio | None:
    return Ratio(median=statistics.median(values), least=min(values), most=max(values)) if values else None


def _example(pairs: Sequence[tuple[Seen, Seen]]) -> str | None:
    if not pairs:
        return None
    base, cell = min(pairs, key=lambda pair: (pair[1].memory_bytes or 1) / (pair[0].memory_bytes or 1))
    said = f"{cell.record.cell.layout}: {amount(base.step_seconds, 's')} to {amount(cell.step_seconds, 's')} a step"  # type: ignore[arg-type]
    if base.memory_bytes and cell.memory_bytes:
        said += f", {amount(base.memory_bytes, 'bytes')} to {amount(cell.memory_bytes, 'bytes')}"
    return said


def _advice(time: Ratio | None, memory: Ratio | None, made_fit: Sequence[str]) -> str:
    """When to choose it, by the medians."""
    fits = f"it made {counted(len(made_fit), 'layout')} fit that ran out of memory without it" if made_fit else ""
    if time is None:
        return f"choose it where a cell does not fit: {fits}" if fits else "nothing is known of what it buys here"
    faster, slower = time.median < 1 - MATTERS, time.median > 1 + MATTERS
    leaner = memory is not None and memory.median < 1 - MATTERS
    fuller = memory is not None and memory.median > 1 + MATTERS
    if leaner and slower:
        saved, cost = 1 - memory.median, time.median - 1  # type: ignore[union-attr]
        advice = f"choose it where memory is short: it saves {saved:.0%} of the peak for {cost:.0%} more time"
    elif faster and fuller:
        advice = f"choose it where memory suffices: it takes {number(time.median)} times the time"
    elif faster or leaner:
        advice = "choose it: " + " and ".join(word for word, is_so in (("faster", faster), ("leaner", leaner)) if is_so)
    elif slower or fuller:
        advice = "leave it: " + " and ".join(word for word, is_so in (("slower", slower), ("fuller", fuller)) if is_so)
    else:
        advice = "it changes little here"
    return f"{advice}; {fits}" if fits else advice


def _all_but(cell: Seen, field: str) -> str:
    """All of a cell but one field, as text."""
    written: dict[str, Any] = cell.record.cell.model_dump(mode="json", by_alias=True)
    (written["batch"] if field == "microbatches" else written).pop(field)
    return json.dumps(written, sort_keys=True)


def _value(cell: Seen, field: str) -> Any:
    return cell.record.cell.batch.microbatches if field == "microbatches" else getattr(cell.record.cell, field)


def _plainness(field: str, value: Any) -> Any:
    return ORDER[field].index(value) if field in ORDER else (value != "none", value)
