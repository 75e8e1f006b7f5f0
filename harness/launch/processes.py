"""What the operating system is asked for, so that no process outlives its use. Linux has all of it; elsewhere less is done."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>
_ROUNDS = 5
_PATIENCE_SECONDS = 5.0


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that started it ends, however that ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, how)


def adopt_orphans() -> None:
    """Make processes below this one whose parent died children of this one, so that they can be found, whatever session
    they moved to."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def below(pids: Iterable[int]) -> set[int]:
    """These processes, as far as they live, and everything they started."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= {pid} | {child.pid for child in process.children(recursive=True)}
    return found


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes and what they started; they adopt their orphans, so none of those is missed while they live."""
    _kill(below(pids))


def kill_orphans(spared: Iterable[int]) -> int:
    """Kill what processes that were started from here left behind when they died, and say how many those were.

    Each of them led a session of its own, so what is below this process in a session that is not its own, and below none
    of `spared`, has lost its parent.

    Args:
        spared: processes that live, and others that are not to be touched.
    """
    ended: set[int] = set()
    for _ in range(_ROUNDS):  # what is killed may just have started something
        # In this order: what a spared process starts in between is then seen as its child.
        doomed = in_other_sessions()
        doomed -= below(spared)
        if not doomed:
            break
        _kill(doomed)
        ended |= doomed
    return len(ended)


def in_other_sessions() -> set[int]:
    """Everything below this process that lives in a session other than its own."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if _lives(child) and _session(child.pid) not in (None, os.getsid(0))}


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP) and does not run."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def out_of_memory_kills() -> int:
    """How many processes of this control group the kernel has killed for want of memory; 0 where it does not tell."""
    for path in _memory_event_files():
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def _memory_event_files() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    files = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2
                files.append(root / path.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                files.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    # Inside a container the path above is the host's, and the group's own files lie at the root.
    return [*files, root / "memory.events", root / "memory" / "memory.oom_control"]


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + _PATIENCE_SECONDS
    waiting = set(pids)
    while waiting and time.monotonic() < until:
        waiting = {pid for pid in waiting if not _gone(pid)}
        if waiting:
            time.sleep(0.005)


def _gone(pid: int) -> bool:
    """Whether a killed process has ended; an adopted child's exit status is collected, others have somebody who does."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    try:
        return not _lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True
