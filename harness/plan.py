"""The cells of a suite, which can run, why the others cannot, what they need and how long it takes. Starts no cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness import estimate
from harness.launch.local import ChildError
from harness.report.words import amount
from harness.table import counted, duration, techniques, text_table

Ask = Callable[[str, dict[str, Any]], Any]
"""Calls `module:function` with a payload in a child process that has torch loaded."""

NOT_EXPECTED_TO_FIT = "expected not to fit"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A cell with what legality said of it."""

    cell: Cell
    reason: str | None
    """Why it cannot run; None if it can."""
    seconds: float
    """About how long it takes."""
    memory_bytes: int | None = None
    """About what its fullest device needs; None: not estimated."""

    def fits(self, site: Site) -> bool:
        """Whether the estimate is within the site's memory, as far as both are known. What is not expected to fit runs, too."""
        # "Devices" of a CPU share the machine's memory, where they are not given a part each.
        devices = self.cell.devices if site.kind == "cpu" and not site.device_memory_bytes else 1
        return not site.usable_bytes or self.memory_bytes is None or devices * self.memory_bytes <= site.usable_bytes


def judge(cells: Sequence[Cell], site: Site, ask: Ask) -> list[Planned]:
    """Ask for all cells at once which can run, and how many processes and how much memory each needs.

    Raises:
        UsageError: a cell asks for something that does not exist, such as a misspelt knob.
    """
    planned = []
    for cell, answer in zip(cells, _answers(cells, site, ask), strict=True):
        complete = cell.model_copy(update={"processes": answer["processes"]})
        p = Planned(cell=complete, reason=answer["reason"], seconds=0.0, memory_bytes=answer.get("memory_bytes"))
        if p.reason is None:
            counts = {name: answer[name] for name in ("flops", "parameters", "verified_parameters")}
            p = replace(p, seconds=estimate.seconds(p.cell, **counts, site=site, fits=p.fits(site)))
        planned.append(p)
    return planned


def _answers(cells: Sequence[Cell], site: Site, ask: Ask) -> list[dict[str, Any]]:
    """What legality says of each cell; where a framework takes the process that asks with it, of its own cells that."""
    payload = {"cells": [cell.model_dump(mode="json", by_alias=True) for cell in cells], "site": site.model_dump(mode="json")}
    try:
        return ask("harness.legality:answer", payload)
    except ChildError as error:
        families = dict.fromkeys(cell.layout.family for cell in cells)
        if len(families) == 1:
            reason = f"it cannot be judged, and so not run: {error}"
            return [{"processes": cell.devices, "reason": reason} for cell in cells]
    answers: dict[str, dict[str, Any]] = {}
    for family in families:
        those = [cell for cell in cells if cell.layout.family == family]
        answers |= dict(zip((cell.id for cell in those), _answers(those, site, ask), strict=True))
    return [answers[cell.id] for cell in cells]


def describe(planned: Sequence[Planned], site: Site, *, budget_seconds: float | None = None) -> str:
    """The plan as text: a table of cells, the reasons of those that cannot run, and the estimates.

    Args:
        budget_seconds: what is expected to end within it runs, the most informative cells first.
    """
    left_out: set[str] = set()
    if budget_seconds is not None:
        from harness.order import by_information

        planned = by_information(planned)
        left_out = _left_out(planned, budget_seconds)
    header = ("cell", "model", "layout", "devices", "processes", "techniques", "batch", "memory per device", "runs")
    lines = [text_table(header, [_row(p, site, left_out) for p in planned]), ""]
    refused = [p for p in planned if p.reason]
    for reason in dict.fromkeys(p.reason for p in refused):
        lines.append(f"cannot run: {', '.join(p.cell.id for p in refused if p.reason == reason)}: {reason}")
    tight = sum(not p.fits(site) for p in planned)
    if tight:
        lines.append(f"{NOT_EXPECTED_TO_FIT} {site}: {counted(tight, 'cell')}, which run nevertheless, as evidence")
    if left_out:
        lines.append(f"left out for the budget of {duration(budget_seconds or 0)}: {counted(len(left_out), 'cell')}")
    time = duration(sum(p.seconds for p in planned if p.cell.id not in left_out))
    can = len(planned) - len(refused)
    lines.append(f"{counted(len(planned), 'cell')} on {site}: {can} can run, {len(refused)} cannot; about {time}")
    return "\n".join(lines)


def _row(p: Planned, site: Site, left_out: set[str]) -> tuple[str, ...]:
    memory = "-" if p.memory_bytes is None else amount(p.memory_bytes, "bytes")
    return (
        p.cell.id,
        p.cell.model,
        str(p.cell.layout),
        str(p.cell.devices),
        str(p.cell.processes),
        techniques(p.cell),
        f"{p.cell.batch.global_size}x{p.cell.batch.sequence}",
        memory if p.fits(site) else f"{memory}, {NOT_EXPECTED_TO_FIT}",
        "no" if p.reason else "left out" if p.cell.id in left_out else "yes",
    )


def _left_out(planned: Sequence[Planned], budget_seconds: float) -> set[str]:
    """The cells that a run of this order would pass over, if each took what is expected of it."""
    spent, left_out = 0.0, set()
    for p in planned:
        if p.reason is None:
            if spent + p.seconds > budget_seconds:
                left_out.add(p.cell.id)
            else:
                spent += p.seconds
    return left_out
