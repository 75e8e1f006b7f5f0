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


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends, however that ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make processes whose parent died children of this one, so that `kill_all` finds them."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def below(pids: Iterable[int]) -> set[int]:
    """These processes, as far as they live, and everything they started."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= {pid} | {child.pid for child in process.children(recursive=True)}
    return found


def kill_all(pids: Iterable[int], sessions: Iterable[int] = ()) -> None:
    """Kill processes, what they started, and what was left to this process by members of `sessions`.

    Args:
        sessions: session ids, each that of a rank, which leads a session of its own.
    """
    sessions = set(sessions)
    doomed = below(pids)
    with contextlib.suppress(psutil.Error):
        doomed |= {child.pid for child in psutil.Process().children(recursive=True) if _session(child.pid) in sessions}
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in doomed:
        _reap(pid)


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


def _reap(pid: int, patience_seconds: float = 1.0) -> None:
    """Collect an adopted child's exit status, so that it does not stay behind as a zombie; others are not ours to wait for."""
    until = time.monotonic() + patience_seconds
    while time.monotonic() < until:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        except ChildProcessError:
            return
        time.sleep(0.005)
