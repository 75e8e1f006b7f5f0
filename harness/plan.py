"""The cells of a suite, which can run, why the others cannot, and about how long it takes. Starts no cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness.table import counted, duration, techniques, text_table

Ask = Callable[[str, dict[str, Any]], Any]
"""Calls `module:function` with a payload in a child process that has torch loaded."""

VERIFY_SECONDS, MEASURE_SECONDS = 1.0, 2.0
"""What verification (with its share of a reference) and measurement take beside their steps, as seen on two cores."""
STEP_SECONDS = 0.02
"""What a step takes beside its arithmetic."""
WARMUP_STEPS = 15
"""After how many steps warm-up usually ends."""
FLOPS_PER_SECOND = {"cpu": 2e10, "cuda": 1e14}
"""What one core or GPU is taken to reach, order of magnitude."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A cell with what legality said of it."""

    cell: Cell
    reason: str | None
    """Why it cannot run; None if it can."""
    seconds: float
    """About how long it takes."""


def judge(cells: Sequence[Cell], site: Site, ask: Ask) -> list[Planned]:
    """Ask for all cells at once which can run, and how many processes each needs.

    Raises:
        UsageError: a cell asks for something that does not exist, such as a misspelt knob.
    """
    payload = {"cells": [cell.model_dump(mode="json", by_alias=True) for cell in cells], "site": site.model_dump(mode="json")}
    planned = []
    for cell, answer in zip(cells, ask("harness.legality:answer", payload), strict=True):
        complete = cell.model_copy(update={"processes": answer["processes"]})
        seconds = 0.0 if answer["reason"] else _seconds(complete, answer["flops"], site)
        planned.append(Planned(cell=complete, reason=answer["reason"], seconds=seconds))
    return planned


def describe(planned: Sequence[Planned], site: Site) -> str:
    """The plan as text: a table of cells, the reasons of those that cannot run, and the estimate."""
    rows = [
        (
            p.cell.id,
            p.cell.model,
            str(p.cell.layout),
            str(p.cell.devices),
            str(p.cell.processes),
            techniques(p.cell),
            f"{p.cell.batch.global_size}x{p.cell.batch.sequence}",
            "no" if p.reason else "yes",
        )
        for p in planned
    ]
    lines = [text_table(("cell", "model", "layout", "devices", "processes", "techniques", "batch", "runs"), rows), ""]
    refused = [p for p in planned if p.reason]
    for reason in dict.fromkeys(p.reason for p in refused):
        lines.append(f"cannot run: {', '.join(p.cell.id for p in refused if p.reason == reason)}: {reason}")
    time = duration(sum(p.seconds for p in planned))
    can = len(planned) - len(refused)
    lines.append(f"{counted(len(planned), 'cell')} on {site}: {can} can run, {len(refused)} cannot; about {time}")
    return "\n".join(lines)


def _seconds(cell: Cell, flops: int, site: Site) -> float:
    step = STEP_SECONDS + flops / (FLOPS_PER_SECOND[site.kind] * max(1, min(cell.devices, site.count)))
    protocol = cell.protocol
    seconds = VERIFY_SECONDS + 2 * protocol.verify_steps * step
    if protocol.measure_steps:
        warmup = min(protocol.warmup_steps, WARMUP_STEPS) * step
        seconds += MEASURE_SECONDS + warmup + max(protocol.measure_seconds, protocol.measure_steps * step)
    return seconds
