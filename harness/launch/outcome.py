"""How the processes of one phase ended: with an answer each, or with one cause among many symptoms."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|CUDA out of memory|CUDA error: out of memory"
    r"|Cuda failure.*out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory|std::bad_alloc",
    re.IGNORECASE,
)
_ECHO = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|recvValue failed|sendBytes failed"
    r"|Failed to recv|Application timeout caused pair closure|remote process exited|NCCL.*(remote error|ncclRemoteError|peer)",
    re.IGNORECASE,
)


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

    @property
    def echo(self) -> bool:
        """Whether it only noticed that another rank was gone."""
        return self.error is not None and bool(_ECHO.search(self.error["message"]))


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
    if error:
        line = error["message"].strip().split("\n")[0]
        if _is_out_of_memory(error):
            return Failure(status="oom", reason=f"{where} ran out of memory: {line or error['type']}", **common)
        return Failure(status="crashed", reason=f"{where} raised {error['type']}: {line}", **common)
    code = cause.exit_code
    if code == -signal.SIGKILL and kernel_out_of_memory:
        return Failure(status="oom", reason=f"{where} was killed by the kernel for want of memory", **common)
    if code is not None and code < 0:
        return Failure(status="crashed", reason=f"{where} was ended by {_signal_name(-code)}", **common)
    return Failure(status="crashed", reason=f"{where} ended with exit status {code} and no result", **common)


def timed_out(endings: Sequence[Ending], *, limit: float) -> Failure:
    """A hang: the rank that is behind the others, if one is.

    Args:
        endings: of the ranks that were killed, at least one.
    """
    first = min(endings, key=lambda e: e.at)
    behind = [e for e in endings if e.phase == first.phase]
    alone = len(behind) == 1 and len(endings) > 1
    tails = [f"rank {e.rank}:\n{e.log_tail}" for e in (behind if alone else endings)]
    who = f"rank {first.rank}" if alone or len(endings) == 1 else f"{len(endings)} ranks"
    return Failure(
        status="timeout",
        reason=f"{who} did not finish {first.phase} in {limit:g} s",
        rank=first.rank if alone or len(endings) == 1 else None,
        phase=first.phase,
        log_tail="\n".join(tails),
    )


def _is_out_of_memory(error: dict[str, Any]) -> bool:
    kind = error["type"].rpartition(".")[2]
    return kind in ("OutOfMemoryError", "MemoryError") or bool(_NO_MEMORY.search(error["message"]))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
