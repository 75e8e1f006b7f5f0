"""The children of one launch, seen from their parent: waited for, bounded in time, and ended together."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from harness.launch import entry
from harness.launch.logs import Log
from harness.launch.outcome import Ending
from harness.launch.processes import is_stopped, kill_all

GRACE_SECONDS = 2.0
"""How long the other ranks may take to say how they fare once one has failed."""
STACK_SECONDS = 2.0
"""How long a child may take to write its stacks; it needs milliseconds where it has a core."""
MOST_AT_ONCE = 2**20
"""Bytes of a log that are taken in before anything else is looked at."""


class Stopped(KeyboardInterrupt):
    """The launcher was told to end everything at once."""


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """A limit that has passed."""

    seconds: float
    of: str
    """A phase, or `cell`."""


class Child:
    """One child, seen from here."""

    def __init__(
        self,
        order: entry.Order,
        process: multiprocessing.process.BaseProcess,
        reports: connection.Connection,
        printed: connection.Connection,
        log: Log,
    ):
        self.order, self.process, self.log = order, process, log
        self.history: list[tuple[str, float]] = [("start", time.monotonic())]
        self.killed = self.stopped = False
        self.sources = [reports, printed]
        """What may have something to read."""
        self._reports, self._printed = reports, printed
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
        """Take in what it has reported and printed."""
        for source, take in ((self._reports, self._take_report), (self._printed, self._take_print)):
            taken = 0
            while source in self.sources and taken < MOST_AT_ONCE:
                try:
                    if not source.poll():
                        break
                    taken += take()
                except (EOFError, OSError):  # it has ended, or closed it
                    self.sources.remove(source)

    def _take_report(self) -> int:
        message = self._reports.recv_bytes()
        report = json.loads(message)
        self.history.append((report["phase"], report["at"]))
        return len(message)

    def _take_print(self) -> int:
        content = os.read(self._printed.fileno(), 2**16)
        if not content:
            raise EOFError
        self.log.write(content)
        return len(content)

    def dead(self) -> bool:
        """Whether its process has ended."""
        if self.process.exitcode is None:
            return False
        self._ended_at = self._ended_at or time.monotonic()
        return True

    def stacks(self) -> str:
        """What it wrote when it was asked where it is."""
        with contextlib.suppress(OSError):
            return self.order.stacks_file.read_text(errors="replace")
        return ""

    def ending(self) -> Ending:
        """How it ended."""
        error = None if self.killed else self._left().get("error")
        at = error["at"] if error else self.history[-1][1] if self.killed else self._ended_at or time.monotonic()
        return Ending(
            rank=self.order.rank or 0,
            phase="build" if self.phase == "start" else self.phase,
            at=at,
            exit_code=None if self.killed else self.process.exitcode,
            error=error,
            log_tail=self.log.tail(),
            stacks=self.stacks() if self.killed else "",
            stopped=self.stopped,
        )

    def close(self) -> None:
        """It has ended: take in the rest of what it printed."""
        self.process.join(timeout=5)
        self.listen()
        self._reports.close()
        self._printed.close()
        self.log.close()

    def _left(self) -> dict[str, Any]:
        return json.loads(self.order.answer_file.read_text()) if self.answered else {}


def wait(
    children: Sequence[Child],
    limits: Mapping[str, float],
    *,
    deadline: float | None,
    within: float,
    stop: connection.Connection,
    on_phase: Callable[[str], None] | None,
) -> Overdue | None:
    """Wait until all have answered, one has failed and the others had their grace, or one is overdue: then its limit.

    Args:
        deadline: of all phases together, on the monotonic clock; `within`: the seconds that this is, to be told.

    Raises:
        Stopped: `stop` became readable.
    """
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
        ends = [
            (c.history[-1][1] + limits.get(c.phase, default), Overdue(seconds=limits.get(c.phase, default), of=c.phase))
            for c in waiting
        ]
        if deadline is not None:
            ends.append((deadline, Overdue(seconds=within, of="cell")))
        end_at, overdue = min(ends, key=lambda pair: pair[0])
        until = min(end_at, give_up_at) if give_up_at else end_at
        remaining = until - time.monotonic()
        if remaining <= 0:
            return None if give_up_at and give_up_at <= end_at else overdue
        ready = connection.wait(
            [stop, *(c.process.sentinel for c in waiting), *(s for c in waiting for s in c.sources)], timeout=remaining
        )
        if stop in ready:
            raise Stopped


def end(children: Sequence[Child]) -> None:
    """Leave nothing running: first ask those that still run where they are, then kill them and what they started."""
    running = [c for c in children if not c.dead()]
    for child in running:
        child.killed = not child.answered
        child.stopped = is_stopped(child.process.pid)
        for number in (signal.SIGUSR1, signal.SIGCONT):  # one that was stopped must run to say where
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid, number)
    _await_stacks([c for c in running if c.killed])
    kill_all(c.process.pid for c in running)
    for child in children:
        child.close()


def durations(children: Sequence[Child]) -> dict[str, float]:
    """Seconds by phase, of the slowest child."""
    found: dict[str, float] = {}
    for child in children:
        spent: dict[str, float] = {}
        for (phase, begun), (_, ended) in zip(child.history, child.history[1:], strict=False):
            spent[phase] = spent.get(phase, 0.0) + ended - begun
        found.update({phase: max(seconds, found.get(phase, 0.0)) for phase, seconds in spent.items()})
    return found


def _await_stacks(children: Sequence[Child]) -> None:
    """Until all stacks are there and grow no more, or it takes too long."""
    until = time.monotonic() + STACK_SECONDS
    before: list[int] = []
    while time.monotonic() < until:
        for child in children:
            child.listen()  # one that waits to print cannot answer
        sizes = [len(child.stacks()) for child in children]
        if sizes == before and all(sizes):
            return
        before = sizes
        time.sleep(0.02)
