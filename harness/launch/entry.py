"""The first code of ours that a child process runs: it binds itself to its parent, redirects its output, calls the one
function that it was started for, and leaves the answer as a file. Imports no torch, so that it can name what fails."""

from __future__ import annotations

import faulthandler
import getpass
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from harness.launch.processes import adopt_orphans, die_with_parent

END = "end"
"""What is reported as the last phase of a child, once its answer is written."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The devices that one launch has for itself, where others run beside it."""

    kind: str
    """`cpu` or `cuda`."""
    devices: tuple[int, ...]
    """By their places among the cores that the harness may use, or among the CUDA devices that it sees."""

    def take(self) -> None:
        """Confine this process to them; CUDA must not have started."""
        if self.kind == "cpu":
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[device] for device in self.devices})
        else:
            seen = os.environ.get("CUDA_VISIBLE_DEVICES")
            names = seen.split(",") if seen else [str(n) for n in range(max(self.devices) + 1)]
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[device] for device in self.devices)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one child is told."""

    function: str
    """`module:name`; a rank's is called with (payload, seat), any other with (payload)."""
    payload_file: Path
    answer_file: Path
    stacks_file: Path
    """Gets the stacks of a child that is asked for them by SIGUSR1."""
    temporary: Path
    """Where it puts temporary files; gone after the launch."""
    place: Place | None
    rank: int | None
    """None: not one of several ranks."""
    size: int


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a rank sits, and how it says what it is doing."""

    rank: int
    size: int
    rendezvous: Path
    """A path that all ranks share, where no file is yet."""
    report: Callable[[str], None]
    """Tell the parent which phase begins."""


def resolve(name: str) -> Callable[..., Any]:
    """The function that `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def run(order: Order, reports: Connection, log: Connection) -> None:
    """Run an order and end this process; never returns."""
    die_with_parent()
    adopt_orphans()
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):  # which the server handles in its own way
        signal.signal(number, signal.SIG_DFL)
    _redirect(log)
    faulthandler.enable()
    # The parent asks for the stacks of a child that hangs before it kills it.
    stacks = order.stacks_file.open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    _keep_temporary_files(order.temporary)
    if order.place is not None:
        order.place.take()
    importlib.invalidate_caches()

    def report(phase: str) -> None:
        reports.send_bytes(json.dumps({"phase": phase, "at": time.monotonic()}).encode())

    try:
        payload = json.loads(order.payload_file.read_text())
        arguments = [payload]
        if order.rank is not None:
            rendezvous = order.answer_file.parent / "rendezvous"
            arguments.append(Seat(rank=order.rank, size=order.size, rendezvous=rendezvous, report=report))
        outcome = {"answer": resolve(order.function)(*arguments)}
        text = json.dumps(outcome)
    except BaseException as error:
        traceback.print_exc()
        outcome = {"error": describe(error)}
        text = json.dumps(outcome)
    half = order.answer_file.with_suffix(".new")
    half.write_text(text)
    half.replace(order.answer_file)
    report(END)
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreters that hold process groups and thread pools may hang while they end; there is nothing left to do.
    os._exit(0 if "answer" in outcome else 1)


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as data, with what it was raised from, innermost last."""
    causes = []
    cause = error
    while (cause := cause.__cause__) is not None and len(causes) < 10:
        causes.append({"type": _kind(cause), "message": str(cause)[:4000]})
    return {
        "type": _kind(error),
        "message": str(error)[:4000],
        "causes": causes,
        "traceback": "".join(traceback.format_exception(error))[-8000:],
        "usage": isinstance(error, UsageError),
        "at": time.monotonic(),
    }


def _kind(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _redirect(log: Connection) -> None:
    """Send everything this process prints, C libraries included, to its parent."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    log.close()
    # The server's own streams may be in a test's or an editor's hands.
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))


def _keep_temporary_files(folder: Path) -> None:
    """Let temporary files end with the launch, but not what compilers keep for later runs."""
    cache = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
