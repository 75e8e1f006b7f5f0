"""The children of one launch, seen from their parent: waited for, bounded in time, and ended together."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from harness.launch import entry
from harness.launch.outcome import Ending
from harness.launch.processes import kill_all

GRACE_SECONDS = 2.0
"""How long the other ranks may take to say how they fare once one has failed."""
TAIL_CHARACTERS = 4000


class Child:
    """One child, seen from here."""

    def __init__(self, order: entry.Order, process: multiprocessing.process.BaseProcess, reports: connection.Connection):
        self.order, self.process, self.reports = order, process, reports
        self.history: list[tuple[str, float]] = [("start", time.monotonic())]
        self.killed = False
        self.log_begins = order.log_file.stat().st_size if order.log_file.exists() else 0
        self._ended_at: float | None = None

    @property
    def phase(self) -> str:
        """What it does now, or did last."""
        return next((phase for phase, _ in reversed(self.history) if phase != entry.END), "start")

    @property
    def answered(self) -> bool:
        return self.order.answer_file.exists()

    @property
    def answer(self) -> dict[str, Any] | None:
        """What it left as its answer; None where it left an error or nothing."""
        left = self._left()
        return left if "answer" in left else None

    def listen(self) -> None:
        """Take in what it has reported."""
        with contextlib.suppress(EOFError, OSError):
            while self.reports.poll():
                message = json.loads(self.reports.recv_bytes())
                self.history.append((message["phase"], message["at"]))

    def dead(self) -> bool:
        """Whether its process has ended."""
        if self.process.exitcode is None:
            return False
        self._ended_at = self._ended_at or time.monotonic()
        return True

    def ending(self) -> Ending:
        """How it ended."""
        error = self._left().get("error")
        at = error["at"] if error else self.history[-1][1] if self.killed else self._ended_at or time.monotonic()
        return Ending(
            rank=self.order.rank or 0,
            phase="build" if self.phase == "start" else self.phase,
            at=at,
            exit_code=None if self.killed else self.process.exitcode,
            error=error,
            log_tail=_tail(self.order.log_file, self.log_begins),
        )

    def _left(self) -> dict[str, Any]:
        return json.loads(self.order.answer_file.read_text()) if self.answered else {}


def wait(children: Sequence[Child], limits: Mapping[str, float], on_phase: Callable[[str], None] | None) -> float | None:
    """Wait until all have answered, one has failed and the others had their grace, or one is overdue: then its limit."""
    default = next(iter(limits.values()))
    told, give_up_at = 1, None
    while True:
        for child in children:
            child.listen()
        waiting = [c for c in children if not c.dead()]
        reached = min((c.history for c in children), key=len)  # by the rank that is behind
        for phase, _ in reached[told:]:
            if on_phase and phase != entry.END:
                on_phase(phase)
        told = len(reached)
        if not waiting:
            return None
        if give_up_at is None and any(c.dead() and c.answer is None for c in children):
            give_up_at = time.monotonic() + GRACE_SECONDS
        deadlines = [(c.history[-1][1] + limits.get(c.phase, default), limits.get(c.phase, default)) for c in waiting]
        deadline, limit = min(deadlines)
        until = min(deadline, give_up_at) if give_up_at else deadline
        remaining = until - time.monotonic()
        if remaining <= 0:
            return None if give_up_at and give_up_at <= deadline else limit
        connection.wait([c.process.sentinel for c in waiting] + [c.reports for c in waiting], timeout=remaining)


def end(children: Sequence[Child]) -> None:
    """Leave nothing running: first ask those that still run where they are, then kill them and what they started."""
    running = [c for c in children if not c.dead()]
    for child in running:
        child.killed = not child.answered
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.process.pid, signal.SIGUSR1)
    if running:
        time.sleep(0.2)  # while faulthandler writes the stacks
    kill_all([c.process.pid for c in running], sessions=[c.process.pid for c in children])
    for child in children:
        child.process.join(timeout=5)
        child.listen()
        child.reports.close()


def durations(children: Sequence[Child]) -> dict[str, float]:
    found: dict[str, float] = {}
    for child in children:
        spent: dict[str, float] = {}
        for (phase, begun), (_, ended) in zip(child.history, child.history[1:], strict=False):
            spent[phase] = spent.get(phase, 0.0) + ended - begun
        found.update({phase: max(seconds, found.get(phase, 0.0)) for phase, seconds in spent.items()})
    return found


def _tail(path: Path, begins: int) -> str:
    """The end of what a log holds from `begins` on."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(begins, path.stat().st_size - TAIL_CHARACTERS))
        return file.read().decode(errors="replace")
    return ""
