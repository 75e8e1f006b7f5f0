"""The answer on top of a report: for each model and amount of work the fastest and the leanest verified cell, and why,
and the cells between them that are worth a choice.

Only cells that train on the same batches are set against each other, and only verified ones. Where the intervals of
the two fastest overlap, the answer says so instead of naming a winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.report.frame import ANATOMY
from harness.report.words import amount, number

NEEDED = ["run", "cell_id", "model", "layout", "label", "technique", "devices", "work", "throughput_unit", "verified",
          "throughput", "throughput_low", "throughput_high", "peak_memory_bytes"]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One cell and the sentence that says why it was chosen."""

    cell_id: str
    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a run says about one model at one amount of work per step."""

    run: str
    model: str
    work: str
    """Global batch, and sequence where there is one, for example `batch 8×64`."""
    asked: int
    verified: int
    fastest: Choice | None
    """None where no cell was verified and timed."""
    leanest: Choice | None
    """None where no verified cell was probed for memory."""
    pareto: tuple[Choice, ...]
    """Nothing is both faster and leaner than these; the leanest first."""


def answers(table: pd.DataFrame) -> list[Answer]:
    """One answer per run, model and work, in the order of the table."""
    found = []
    table = table[[*NEEDED, *(f"memory_{part}_bytes" for part in ANATOMY)]]
    for (run, model, work), cells in table.groupby(["run", "model", "work"], sort=False):
        verified = cells[cells["verified"]]
        found.append(
            Answer(
                run=run,
                model=model,
                work=work,
                asked=len(cells),
                verified=len(verified),
                fastest=_fastest(verified[verified["throughput"].notna()]),
                leanest=_leanest(verified[verified["peak_memory_bytes"].notna()]),
                pareto=_pareto(front(cells)),
            )
        )
    return found


def front(cells: pd.DataFrame) -> pd.DataFrame:
    """The Pareto front of memory and throughput among the verified of `cells`, the leanest first."""
    figures = ["peak_memory_bytes", "throughput"]
    verified = cells[cells["verified"] & cells[figures].notna().all(axis="columns")]
    ranked = verified.sort_values(figures, ascending=[True, False], kind="stable")
    beaten = ranked["throughput"] <= ranked["throughput"].cummax().shift(fill_value=float("-inf"))
    return ranked[~beaten]


def _pareto(chosen: pd.DataFrame) -> tuple[Choice, ...]:
    """The front in words: what each costs and brings over the one before it."""
    found: list[Choice] = []
    before = None
    for cell in chosen.to_dict("records"):
        figures = f"{_rate(cell)} in {amount(cell['peak_memory_bytes'], 'bytes')}"
        if before is None:
            why = f"{figures}: the leanest."
        else:
            faster = cell["throughput"] / before["throughput"]
            more = cell["peak_memory_bytes"] / before["peak_memory_bytes"]
            why = f"{figures}: {faster:.3g} times as fast as the one before, for {more:.3g} times its memory."
        found.append(Choice(cell_id=cell["cell_id"], name=_name(cell), why=why))
        before = cell
    return tuple(found)


def _fastest(cells: pd.DataFrame) -> Choice | None:
    if cells.empty:
        return None
    ranked = cells.sort_values("throughput", ascending=False, kind="stable")
    best = ranked.iloc[0]
    why = [f"{_rate(best)}{_interval(best)}"]
    base = _single(cells, best)
    if base is not None:
        times = best["throughput"] / base["throughput"]
        why.append(f"{number(times)} times one device in {base['technique']}")
    if len(ranked) > 1:
        second = ranked.iloc[1]
        why.append(f"{_against(best, second)} ({_rate(second)})")
    return Choice(cell_id=best["cell_id"], name=_name(best), why="; ".join(why) + ".")


def _against(best: pd.Series, second: pd.Series) -> str:
    low, high = best["throughput_low"], second["throughput_high"]
    if pd.isna(low) or pd.isna(high):
        return f"next is {_name(second)}"
    if high >= low:
        return f"cannot be told from {_name(second)}, whose interval overlaps"
    return f"ahead of {_name(second)}"


def _leanest(cells: pd.DataFrame) -> Choice | None:
    if cells.empty:
        return None
    ranked = cells.sort_values(["peak_memory_bytes", "throughput"], ascending=[True, False], kind="stable")
    best = ranked.iloc[0]
    why = [f"{amount(best['peak_memory_bytes'], 'bytes')} at the peak of its largest rank"]
    base = _single(cells, best)
    if base is not None:
        why.append(f"{best['peak_memory_bytes'] / base['peak_memory_bytes']:.0%} of one device in {base['technique']}")
        saved = {part: base[f"memory_{part}_bytes"] - best[f"memory_{part}_bytes"] for part in ANATOMY}
        part = max(saved, key=lambda name: saved[name] if pd.notna(saved[name]) else 0)
        if saved[part] > 0:
            why.append(f"it saves most on {part.replace('_', ' ')}, {amount(saved[part], 'bytes')}")
    quickest = cells["throughput"].max()
    if pd.notna(best["throughput"]) and best["throughput"] < quickest:
        why.append(f"it trains at {best['throughput'] / quickest:.0%} of the fastest cell's speed")
    return Choice(cell_id=best["cell_id"], name=_name(best), why="; ".join(why) + ".")


def _single(cells: pd.DataFrame, of: pd.Series) -> pd.Series | None:
    """The single-device cell to hold `of` against: of the same technique if there is one; None for itself."""
    singles = cells[(cells["layout"] == "single") & (cells["cell_id"] != of["cell_id"])]
    if singles.empty or of["layout"] == "single":
        return None
    alike = singles[singles["technique"] == of["technique"]]
    return (alike if len(alike) else singles).iloc[0]


def _name(cell: pd.Series | dict) -> str:
    devices = int(cell["devices"])
    return f"{cell['label']} in {cell['technique']} on {devices} device{'s' if devices > 1 else ''}"


def _rate(cell: pd.Series | dict) -> str:
    return f"{number(cell['throughput'])} {cell['throughput_unit']}"


def _interval(cell: pd.Series) -> str:
    low, high = cell["throughput_low"], cell["throughput_high"]
    return f" (95 % interval {number(low)} to {number(high)})" if pd.notna(low) and pd.notna(high) else ""


def outcome(table: pd.DataFrame) -> str:
    """How many cells were asked for and how they ended, in one sentence."""
    counts = table["word"].where(table["word"] != "", "measured and verified").value_counts(sort=True)
    parts: Sequence[str] = [f"{n} {word}" for word, n in counts.items()]
    return f"{len(table)} cell{'' if len(table) == 1 else 's'}: {', '.join(parts)}." if len(table) else "No cell has a record."
