"""Executes a plan: one record for each cell, in a shuffled order, until all have one or the budget is spent. Imports no torch.

What is to be done stands in `run.json` before the first cell starts, and what was done in `records.jsonl`; so a run
that was stopped, in whatever way, goes on by doing what has no record.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from harness import store
from harness.budget import Pace
from harness.order import by_information
from harness.plan import Planned
from harness.record import Record
from harness.report.words import STATUS_WORDS, amount, error
from harness.table import counted, duration, techniques, text_table

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
    run_cell: Callable[[Cell], Record],
    *,
    budget_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run every cell of a run folder that has no record, and say on standard error how it goes.

    With a budget the most informative cells run first, and a cell that is expected to end after it is left out; what
    each cell took corrects what is expected of those like it. `run.json` then names the cells that were left out.

    Args:
        run_cell: gives the one record of a legal cell.
        budget_seconds: what all cells together may take, from now on; None: what they need.
        clock: gives seconds.

    Returns:
        Whether all cells have a record now or were left out; False after Ctrl-C or a request to end.

    Raises:
        UsageError: another process runs in the folder, or it cannot be written.
    """
    with store.locked(folder), _ended_by_signal():
        run = store.read(folder)
        done = {record.cell_id for record in run.records}
        planned = [
            Planned(cell=Cell.model_validate(c["cell"]), reason=c["reason"], seconds=c["seconds"]) for c in run.run["cells"]
        ]
        if budget_seconds is not None:
            planned = by_information(planned)
        left = [p for p in planned if p.cell.id not in done]
        pace = _pace(planned, run.records)
        progress = _Progress([p for p in left if p.reason is None], pace, budget_seconds, clock)
        state, left_out = "interrupted", []
        try:
            for p in left:
                if p.reason is not None:
                    _append(folder, _skipped(p, run))
            for p in progress.todo:
                if not progress.fits(p):
                    left_out.append(p.cell.id)
                    continue
                progress.begin(p)
                record = run_cell(p.cell)
                _append(folder, record)
                progress.end(p, record)
            state = "budget spent" if left_out else "finished"
        except KeyboardInterrupt:
            print(f"\nstopped; go on with: hpbench run --resume {folder}", file=sys.stderr)
        finally:
            ended = {"state": state, "budget_seconds": budget_seconds, "left_out": left_out}
            store.write_json(folder / store.RUN, {**run.run, **ended})
    return state != "interrupted"


def closing(folder: Path) -> str:
    """What a run gave, as text: a table of cells, why some gave nothing, where it lies and what to do next."""
    run = store.read(folder)
    order = {Cell.model_validate(c["cell"]).id: i for i, c in enumerate(run.run["cells"])}
    records = sorted(
        run.records, key=lambda r: (r.cell.model, r.cell.devices, str(r.cell.layout), techniques(r.cell), order[r.cell_id])
    )
    header = ("cell", "model", "layout", "techniques", "status", "step", "peak memory", "parity")
    lines = [text_table(header, [_row(record) for record in records]), ""] if records else []
    for record in records:
        if record.reason:
            lines.append(
                f"{STATUS_WORDS[record.status]}: {record.cell_id} {record.cell.model} {record.cell.layout}: {record.reason}"
            )
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
            pace.learn(record.cell, expected[record.cell_id], sum(record.durations.values()))
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
        raise UsageError(
            f"cannot add a record to '{folder}': {problem}; make room and go on with --resume '{folder}'"
        ) from None


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


class _Progress:
    """One line on standard error for each cell, with the time that is left; and the clock of the budget."""

    def __init__(self, todo: Sequence[Planned], pace: Pace, budget: float | None, clock: Callable[[], float]):
        self.todo = todo
        self._pace, self._budget, self._clock = pace, budget, clock
        self._number = self._passed = 0
        self._started = self._cell_started = clock()

    def fits(self, planned: Planned) -> bool:
        """Whether the cell is expected to end within the budget; one that is not is passed over."""
        if self._budget is None:
            return True
        fits = self._clock() - self._started + self._expected(planned) <= self._budget
        self._passed += not fits
        return fits

    def begin(self, planned: Planned) -> None:
        self._number += 1
        self._cell_started = self._clock()
        count = len(self.todo)
        cell = planned.cell
        text = f"[{self._number + self._passed:{len(str(count))}}/{count}] {cell.model} {cell.layout} {techniques(cell)} ... "
        print(text, end="", file=sys.stderr, flush=True)

    def end(self, planned: Planned, record: Record) -> None:
        now = self._clock()
        self._pace.learn(planned.cell, planned.seconds, now - self._cell_started)
        coming = []
        for p in self.todo[self._number + self._passed :]:
            seconds = self._expected(p)
            if self._budget is None or now - self._started + sum(coming) + seconds <= self._budget:
                coming.append(seconds)
        step = record.metrics.get("step_seconds")
        figure = f", {amount(step.value, step.unit)} a step" if step else ""
        left = f"; about {duration(sum(coming))} left" if coming else ""
        print(f"{STATUS_WORDS[record.status]}{figure}{left}", file=sys.stderr, flush=True)

    def _expected(self, planned: Planned) -> float:
        return self._pace.seconds(planned.cell, planned.seconds)


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Treat a request to end (SIGTERM) as Ctrl-C, so that processes are cleaned up and the folder can be resumed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
