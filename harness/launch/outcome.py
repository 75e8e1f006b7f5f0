"""How the processes of one phase ended: with an answer each, or with one cause among many symptoms."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.launch.stacks import Whereabouts, odd_one_out, whereabouts

_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|CUDA out of memory|CUDA error: out of memory"
    r"|Cuda failure.*out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory|std::bad_alloc",
    re.IGNORECASE,
)
_ECHO = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|recvValue failed|sendBytes failed"
    r"|Connection refused|Failed to recv|Application timeout caused pair closure|remote process exited"
    r"|NCCL.*(remote error|ncclRemoteError|peer)",
    re.IGNORECASE,
)
DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
LOST = 255
"""Exit code of a child whose end nobody saw, as the server that it was forked from has ended."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there are no answers."""

    status: Literal["crashed", "oom", "timeout"]
    reason: str
    """One sentence."""
    rank: int | None
    """The rank that failed first; None where that cannot be told, as when all hang."""
    phase: str
    """What it was doing."""
    error_type: str | None = None
    message: str | None = None
    usage: bool = False
    """Whether it is a `UsageError`."""
    exit_code: int | None = None
    """Negative: the signal that ended it."""
    log_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one phase ended."""

    answers: list[Any] = field(default_factory=list)
    """By rank; empty where it failed."""
    failure: Failure | None = None
    durations: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, of the slowest rank; `start` is what passed before a rank said anything."""
    remarks: tuple[str, ...] = ()
    """`<word>: <sentence>` on what it left behind, and on logs that could not be kept."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one rank ended."""

    rank: int
    phase: str
    at: float
    """When, on the monotonic clock."""
    exit_code: int | None
    """None: it had to be killed."""
    error: dict[str, Any] | None
    """What `entry.describe` left, if anything."""
    log_tail: str
    stacks: str = ""
    """Of its threads, as it had to be killed."""
    stopped: bool = False
    """Whether a signal had stopped it."""

    @property
    def echo(self) -> bool:
        """Whether it only noticed that another rank was gone."""
        return any(_ECHO.search(text) for _, text in self._last_words)

    @property
    def out_of_memory(self) -> bool:
        """Whether it asked for memory that is not there."""
        return any(
            kind.rpartition(".")[2] in ("OutOfMemoryError", "MemoryError") or _NO_MEMORY.search(text)
            for kind, text in self._last_words
        )

    @property
    def root(self) -> dict[str, Any]:
        """The exception at the bottom: pipelines raise one of their own from it."""
        error = self.error or {}
        return (error.get("causes") or [error])[-1]

    @property
    def _last_words(self) -> list[tuple[str, str]]:
        """Types and messages of its exceptions, or what the runtime of C++ printed as it aborted."""
        if self.error is not None:
            return [(e["type"], e["message"]) for e in (self.error, *self.error.get("causes", ()))]
        if self.exit_code == -signal.SIGABRT:
            return [("", self.log_tail[self.log_tail.rfind("terminate called") :])]
        return []


def first_failure(endings: Sequence[Ending], *, kernel_out_of_memory: bool) -> Failure:
    """The cause: the earliest ending that is no echo of another.

    Args:
        endings: of every rank that failed by itself, at least one.
        kernel_out_of_memory: whether the kernel killed a process for want of memory meanwhile.
    """
    cause = min(endings, key=lambda e: (e.echo, e.at))
    error = cause.error or {}
    common: dict[str, Any] = {
        "rank": cause.rank,
        "phase": cause.phase,
        "error_type": error.get("type"),
        "message": error.get("message"),
        "usage": error.get("usage", False),
        "exit_code": cause.exit_code,
        "log_tail": cause.log_tail,
    }
    where = f"rank {cause.rank} in {cause.phase}"
    code = cause.exit_code
    killed = code == -signal.SIGKILL or code == LOST and not error
    line = cause.root.get("message", "").strip().split("\n")[0]
    if cause.out_of_memory:
        said = line or cause.root.get("type") or "it was ended by SIGABRT"
        return Failure(status="oom", reason=f"{where} ran out of memory: {said}", **common)
    if error:
        return Failure(status="crashed", reason=f"{where} raised {cause.root['type']}: {line}", **common)
    if killed and kernel_out_of_memory:
        return Failure(status="oom", reason=f"{where} was killed by the kernel for want of memory", **common)
    if code == LOST:
        return Failure(status="crashed", reason=f"{where} was ended together with the server it was forked from", **common)
    if code is not None and code < 0:
        return Failure(status="crashed", reason=f"{where} was ended by {_signal_name(-code)}", **common)
    return Failure(status="crashed", reason=f"{where} ended with exit status {code} and no result", **common)


def timed_out(endings: Sequence[Ending], *, limit: float, of: str) -> Failure:
    """A hang: the rank that keeps the others waiting, if one does.

    That is the only one that is stopped, the only one that is in an earlier phase, or the only one that does not wait in a
    collective.

    Args:
        endings: of the ranks that were killed, at least one.
        limit: seconds that have passed.
        of: the phase that had this limit, or `cell`.
    """
    first = min(endings, key=lambda e: e.at)
    found = {e.rank: whereabouts(e.stacks) for e in endings}
    behind = [e.rank for e in endings if e.phase == first.phase]
    stopped = [e.rank for e in endings if e.stopped]
    culprit = odd_one_out(found)
    for group in (behind, stopped):
        if len(group) == 1:
            culprit = group[0]
    who = f"{len(endings)} ranks" if culprit is None else f"rank {culprit}"
    what = f"the cell in its {limit:g} s, and were in {first.phase}" if of == "cell" else f"{first.phase} in {limit:g} s"
    places: dict[str, list[str]] = {}
    for e in endings:
        text = f"in {_place(found[e.rank])}" + (", stopped by a signal" if e.stopped else "")
        places.setdefault(text, []).append(str(e.rank))
    told = "; ".join(f"rank{'s' if ranks[1:] else ''} {', '.join(ranks)} {text}" for text, ranks in places.items())
    order = sorted(endings, key=lambda e: (e.rank != culprit, e.rank))
    return Failure(
        status="timeout",
        reason=f"{who} did not finish {what}: {told}",
        rank=culprit,
        phase=first.phase,
        log_tail="\n".join(f"rank {e.rank}:\n{_shortened(e.log_tail)}{_shortened(e.stacks)}" for e in order),
    )


def _place(where: Whereabouts | None) -> str:
    if where is None:
        return "an unknown place, as no stack was written"
    return f"a wait for {where.text}" if where.waits else where.text


def _shortened(text: str, most: int = 4000) -> str:
    return text if len(text) <= most else f"...{text[-most:]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
