"""The best verified cell of one model at one amount of work, what else is worth a thought, and what was ruled out.

Throughput: of the cells whose interval overlaps with the fastest one's, the one that needs least memory, as their speeds
are not told apart. Memory: the one that needs least, then the faster. Worth a thought is what no other cell beats in speed
and memory together (the Pareto front).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.recommend.figures import Seen
from harness.report.words import amount, caveat_word, number, with_interval
from harness.table import techniques

Objective = Literal["throughput", "memory"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A cell worth using."""

    cell: str
    """Its id."""
    name: str
    why: str
    speed: float
    speed_unit: str
    memory_bytes: float | None
    command: str
    """Repeats the cell."""


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """A cell that is not worth using, or of which nothing is known."""

    cell: str
    name: str
    kind: str
    """In a word: skipped, out of memory, timed out, crashed, diverged, not comparable, unverified, not timed, exceeds the
    memory given, dominated."""
    why: str
    figures: str
    """Its speed and memory in words; empty where it has none."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What a run says of one model at one amount of work."""

    model: str
    global_batch: int
    sequence: int
    asked: int
    verified: int
    best: Choice | None
    """None where no verified cell was timed and fits."""
    alternatives: list[Choice]
    """From the fastest to the leanest."""
    ruled_out: list[RuledOut]


def choose(cells: Sequence[Seen], objective: Objective, memory_bytes: int | None) -> Advice:
    """Judge the cells of one model that train on the same batches."""
    candidates, ruled_out = [], []
    for cell in cells:
        problem = _problem(cell, objective, memory_bytes)
        if problem:
            ruled_out.append(_ruled_out(cell, *problem))
        else:
            candidates.append(cell)
    best = _best(candidates, objective)
    others = []
    for cell in candidates:
        above = [other for other in candidates if _dominates(other, cell)]
        if above and cell is not best:
            top = max(above, key=_speed)
            ruled_out.append(_ruled_out(cell, "dominated", f"{top.name} does at least as well in both ({top.figures})"))
        elif cell is not best:
            others.append(cell)
    first = cells[0].record.cell
    return Advice(
        model=first.model,
        global_batch=first.batch.global_size,
        sequence=first.batch.sequence,
        asked=len(cells),
        verified=sum(cell.verified for cell in cells),
        best=_choice(best, _why_best(best, candidates, objective)) if best else None,
        alternatives=[_choice(cell, _why_other(cell, best)) for cell in sorted(others, key=_speed, reverse=True)]
        if best
        else [],
        ruled_out=ruled_out,
    )


def _ruled_out(cell: Seen, kind: str, why: str) -> RuledOut:
    return RuledOut(cell=cell.record.cell_id, name=cell.name, kind=kind, why=why, figures=cell.figures)


def _problem(cell: Seen, objective: Objective, memory_bytes: int | None) -> tuple[str, str] | None:
    """Why a cell is no candidate: in a word, and in a sentence."""
    check = cell.record.verification
    if cell.unverified:
        return cell.unverified, cell.record.reason or (check.why if check else None) or "no verification was recorded"
    if cell.speed is None:
        return "not timed", "its protocol verifies only"
    if cell.memory_bytes is None and (memory_bytes is not None or objective == "memory"):
        return "not timed", "its memory was not probed"
    if memory_bytes is not None and cell.memory_bytes is not None and cell.memory_bytes > memory_bytes:
        return (
            "exceeds the memory given",
            f"more than {amount(memory_bytes, 'bytes')} a device at its peak",
        )
    return None


def _best(candidates: Sequence[Seen], objective: Objective) -> Seen | None:
    if not candidates:
        return None
    if objective == "memory":
        return min(candidates, key=lambda cell: (_memory(cell), -_speed(cell)))
    fastest = max(candidates, key=_speed)
    return min((cell for cell in candidates if _alike(cell, fastest)), key=lambda cell: (_memory(cell), -_speed(cell)))


def _dominates(one: Seen, other: Seen) -> bool:
    """As fast and as lean, and better in one of them."""
    speeds, memories = (_speed(one), _speed(other)), (_memory(one), _memory(other))
    return speeds[0] >= speeds[1] and memories[0] <= memories[1] and (speeds[0] > speeds[1] or memories[0] < memories[1])


def _alike(cell: Seen, fastest: Seen) -> bool:
    """Whether this run cannot tell a cell's speed from the fastest one's."""
    high, low = cell.speed.high if cell.speed else None, fastest.speed.low if fastest.speed else None
    return cell is fastest or (high is not None and low is not None and high >= low)


def _speed(cell: Seen) -> float:
    return cell.speed.value if cell.speed else 0.0


def _memory(cell: Seen) -> float:
    return math.inf if cell.memory_bytes is None else cell.memory_bytes


def _choice(cell: Seen, why: str) -> Choice:
    caveats = sorted({caveat_word(caveat) for caveat in cell.record.caveats} - {"cpu"})
    assert cell.speed is not None
    return Choice(
        cell=cell.record.cell_id,
        name=cell.name,
        why=why + (f" (caveats: {', '.join(caveats)})" if caveats else ""),
        speed=cell.speed.value,
        speed_unit=cell.speed.unit,
        memory_bytes=cell.memory_bytes,
        command=cell.record.cell.command(),
    )


def _why_best(best: Seen, candidates: Sequence[Seen], objective: Objective) -> str:
    assert best.speed is not None
    said = [f"{with_interval(best.speed)}"]
    if best.memory_bytes is not None:
        said.append(f"{best.memory} a device at its peak")
    fastest = max(candidates, key=_speed)
    if objective == "memory":
        said.insert(0, f"least memory of {len(candidates)} cells")
        if best is not fastest:
            said.append(f"it trains at {_speed(best) / _speed(fastest):.0%} of the speed of {fastest.name}")
    elif best is fastest:
        said.insert(0, f"fastest of {len(candidates)} cells")
    else:
        said.insert(0, f"as fast as {fastest.name} ({fastest.figures}) as far as this run can tell, and leaner")
    said += _against_one_device(best, candidates)
    return "; ".join(said)


def _against_one_device(best: Seen, candidates: Sequence[Seen]) -> list[str]:
    cell = best.record.cell
    singles = [c for c in candidates if c.record.cell.devices == 1 and techniques(c.record.cell) == techniques(cell)]
    if cell.devices == 1 or not singles:
        return []
    times = _speed(best) / _speed(singles[0])
    return [f"{number(times)} times one device in the same techniques, {times / cell.devices:.0%} of ideal on {cell.devices}"]


def _why_other(cell: Seen, best: Seen) -> str:
    said = [cell.figures, f"{_speed(cell) / _speed(best):.0%} of the best one's speed"]
    if cell.memory_bytes is not None and best.memory_bytes:
        said.append(f"{cell.memory_bytes / best.memory_bytes:.0%} of its memory")
    return "; ".join(said)
