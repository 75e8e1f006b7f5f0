"""Executes a plan: one record for each cell, in a shuffled order, until all have one or the budget is spent. Imports no torch.

What is to be done stands in `run.json` before the first cell starts, and what was done in `records.jsonl`; so a run
that was stopped, in whatever way, goes on by doing what has no record.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness import store
from harness.budget import Pace
from harness.interrupts import Interrupts
from harness.lanes import Devices, run_all
from harness.order import by_information
from harness.plan import Planned
from harness.progress import Progress
from harness.record import Record
from harness.report.words import STATUS_WORDS, amount, error
from harness.table import counted, duration, techniques, text_table
from harness.unlike import unlike

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def prepare(
    planned: Sequence[Planned], folder: Path, *, about: dict[str, Any], environment: dict[str, Any], seed: int | None
) -> None:
    """Make the run folder, with every cell in the order in which it will run.

    The order is shuffled, so that drift of the machine does not favour one strategy.

    Args:
        about: suite, arguments and versions, for `run.json`.
        seed: of the order; None: the most informative cells first, for a run that has a budget.

    Raises:
        UsageError: the folder cannot be used.
    """
    order = by_information(planned)
    if seed is not None:
        order = list(planned)
        random.Random(seed).shuffle(order)
    cells = [{"cell": p.cell.model_dump(mode="json", by_alias=True), "reason": p.reason, "seconds": p.seconds} for p in order]
    run = {"run_id": folder.name, "time": now(), **about, "order_seed": seed, "state": "running", "cells": cells}
    store.create(folder, run, environment)


def go(
    folder: Path,
    run_cell: Callable[..., Record],
    *,
    budget_seconds: float | None = None,
    retry: Collection[str] = (),
    side_by_side: Site | None = None,
    stop: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run every cell of a run folder that has no record, and say on standard error how it goes.

    With a budget the most informative cells run first, and a cell that is expected to end after it is left out; what
    each cell took corrects what is expected of those like it. `run.json` then names the cells that were left out.

    Args:
        run_cell: gives the one record of a legal cell; called in another thread, and where cells run side by side with
            their `place`.
        budget_seconds: what all cells together may take, from now on; None: what they need.
        retry: statuses of records that are set aside, so that their cells run again.
        side_by_side: the site on whose devices cells are packed; None: one cell at a time, on all of them.
        stop: makes calls of `run_cell` that go on end soon.
        clock: gives seconds.

    Returns:
        Whether all cells have a record now or were left out; False after Ctrl-C or a request to end.

    Raises:
        UsageError: another process runs in the folder, or it cannot be written.
    """
    with store.locked(folder), Interrupts() as interrupts:
        _write(folder, {**store.read(folder).run, "state": "running", **store.holder()})
        store.mend(folder)
        if retry:
            store.set_aside(folder, retry)
        run = store.read(folder)
        done = {record.asked for record in run.records}
        planned = [
            Planned(cell=Cell.model_validate(c["cell"]), reason=c["reason"], seconds=c["seconds"]) for c in run.run["cells"]
        ]
        if budget_seconds is not None:
            planned = by_information(planned)
        left = [p for p in planned if p.cell.id not in done]
        todo = [p for p in left if p.reason is None]
        progress = Progress(len(todo), _pace(planned, run.records), budget_seconds, clock, whole_lines=side_by_side is not None)
        state, left_out = "interrupted", []
        try:
            for p in left:
                if p.reason is not None:
                    _append(folder, _skipped(p, run))
            lanes = run_all(todo, run_cell, Devices(side_by_side), progress, interrupts, stop, left_out)
            with contextlib.closing(lanes):
                for cell, record in lanes:
                    _append(folder, record)
                    progress.end(cell, record)
            if not interrupts.asked or len(left_out) + progress.ended == len(todo):
                state = "budget spent" if left_out else "finished"
        except KeyboardInterrupt:
            pass
        finally:
            ended = {"state": state, "budget_seconds": budget_seconds, "left_out": [p.cell.id for p in left_out]}
            with contextlib.suppress(store.NoRoom):  # the records are what counts, and resuming goes by them
                _write(folder, {**run.run, **ended})
        if state == "interrupted":
            print(f"\nstopped; go on with: hpbench run --resume {folder}", file=sys.stderr)
    return state != "interrupted"


def closing(folder: Path) -> str:
    """What a run gave, as text: a table of cells, why some gave nothing, where it lies and what to do next."""
    run = store.read(folder)
    order = {Cell.model_validate(c["cell"]).id: i for i, c in enumerate(run.run["cells"])}
    records = sorted(
        run.records, key=lambda r: (r.cell.model, r.cell.devices, str(r.cell.layout), techniques(r.cell), order[r.asked])
    )
    header = ("cell", "model", "layout", "techniques", "status", "step", "peak memory", "parity")
    lines = [text_table(header, [_row(record) for record in records]), ""] if records else []
    for record in records:
        if record.reason:
            lines.append(
                f"{STATUS_WORDS[record.status]}: {record.cell_id} {record.cell.model} {record.cell.layout}: {record.reason}"
            )
    found = unlike(records)
    lines += [f"{found[r.cell_id]}: {r.cell_id} {r.cell.model} {r.cell.layout}" for r in records if r.cell_id in found]
    left_out = [Cell.model_validate(c["cell"]) for c in run.run["cells"]]
    left_out = [cell for cell in left_out if cell.id in run.run.get("left_out", ())]
    lines += _left_out(left_out)
    counts = {word: sum(r.status == status for r in records) for status, word in STATUS_WORDS.items()}
    said = [f"{n} {word}" for word, n in counts.items() if n]
    if left_out:
        said.append(f"{len(left_out)} left out for the budget of {duration(run.run['budget_seconds'])}")
    not_yet = len(order) - len(records) - len(left_out)
    if not_yet:
        said.append(f"{not_yet} not yet run")
    lines.append(f"{counted(len(order), 'cell')}: {', '.join(said)}")
    lines.append(f"records: {folder / store.RECORDS}")
    again = f"hpbench run --resume {folder}" if len(records) < len(order) else f"hpbench report {folder}"
    lines.append(f"next: {again}, or hpbench explain {folder} CELL")
    return "\n".join(lines)


def exit_status(folder: Path, *, strict: bool) -> int:
    """0: every legal cell ended ok or out of memory; 1: some did not, or with `strict` one was out of memory."""
    good = {"ok", "skipped"} if strict else {"ok", "skipped", "oom"}
    return 0 if all(record.status in good for record in store.read(folder).records) else 1


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _skipped(planned: Planned, run: store.Run) -> Record:
    return Record(
        run_id=run.run["run_id"],
        cell_id=planned.cell.id,
        time=now(),
        environment_id=run.environment["id"],
        cell=planned.cell,
        status="skipped",
        reason=planned.reason,
    )


def _pace(planned: Sequence[Planned], records: Sequence[Record]) -> Pace:
    """What the cells of a resumed run took when they ran."""
    pace, expected = Pace(), {p.cell.id: p.seconds for p in planned}
    for record in records:
        if record.durations:
            pace.learn(record.cell, expected[record.asked], sum(record.durations.values()))
    return pace


def _left_out(cells: Sequence[Cell]) -> list[str]:
    """One line for each model and technique, with the layouts that were left out."""
    layouts: dict[str, list[str]] = {}
    for cell in cells:
        layouts.setdefault(f"{cell.model}, {techniques(cell)}", []).append(str(cell.layout))
    return [f"left out: {name}: {' · '.join(found)}" for name, found in layouts.items()]


def _append(folder: Path, record: Record) -> None:
    try:
        store.append(folder, record)
    except OSError as problem:
        raise _stopped(folder, problem) from None


def _write(folder: Path, run: dict[str, Any]) -> None:
    try:
        store.write_json(folder / store.RUN, run)
    except OSError as problem:
        raise _stopped(folder, problem) from None


def _stopped(folder: Path, problem: OSError) -> store.NoRoom:
    if not folder.is_dir():
        return store.NoRoom(f"the run folder '{folder}' is gone: what it held is lost; start a new run")
    return store.NoRoom(
        f"cannot write to '{folder}': {problem.strerror or problem}; make room, then go on with: hpbench run --resume {folder}"
    )


def _row(record: Record) -> tuple[str, ...]:
    cell, metrics, verification = record.cell, record.metrics, record.verification
    step, memory = metrics.get("step_seconds"), metrics.get("peak_memory_bytes")
    return (
        record.cell_id,
        cell.model,
        str(cell.layout),
        techniques(cell),
        STATUS_WORDS[record.status],
        amount(step.value, step.unit) if step else "-",
        amount(memory.value, memory.unit) if memory else "-",
        f"{verification.verdict}, update error {error(verification.max_update_error)}" if verification else "-",
    )
