"""The local launcher: processes on this machine, forked from a server that has torch loaded. Imports no torch.

    with Launcher() as launcher:
        answer = launcher.call("harness.environment:inspect", {}, limit=60)

A fresh interpreter needs seconds to import torch; a child of the server is there in tenths of a second. Everything that
crosses a process boundary is JSON in a file, but for the name of the phase a rank is in. A child that fails takes the
others with it, one that hangs is killed, and whatever happens to the harness itself the kernel kills its children.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from harness.launch import entry, preload
from harness.launch.children import Child, durations, end, wait
from harness.launch.entry import Place
from harness.launch.leftovers import Leftovers
from harness.launch.logs import Log
from harness.launch.outcome import Failure, Outcome, first_failure, timed_out
from harness.launch.processes import adopt_orphans, below, in_other_sessions, kill_orphans, out_of_memory_kills
from harness.launch.workplace import workplace

ROOT = Path(__file__).resolve().parents[2]

_STARTS = 100
"""How often a server that does not answer is asked again, or another one started, before that is given up."""
_lock = threading.RLock()
"""Held while a child is started and while orphans are looked for, so that none is taken for the other."""
_running: set[int] = set()
"""Children of all launches that go on."""
_others: set[int] = set()
"""What this process had started in sessions of their own before a launcher was entered: not ours to end."""


class ChildError(RuntimeError):
    """A child that was called gave no answer."""

    def __init__(self, failure: Failure):
        super().__init__(failure.reason)
        self.failure = failure


class Launcher:
    """Starts children. The server behind it is one for the whole process and lives as long as that does.

    Args:
        modules: what the server imports besides torch and the harness; heeded by the first launcher of a process.
    """

    def __init__(self, modules: Sequence[str] = ()):
        self._context = multiprocessing.get_context("forkserver")
        self._modules = modules
        self._stop_reader, self._stop_writer = self._context.Pipe(duplex=False)

    def __enter__(self) -> Launcher:
        adopt_orphans()
        with _lock:
            _others.update(in_other_sessions() - below(_running))
            self._warm()
        return self

    def __exit__(self, *exception: object) -> None:
        """Every call cleans up after itself; the server ends with this process."""

    def stop(self) -> None:
        """End all launches that go on, in other threads; they raise `Stopped`."""
        self._stop_writer.send_bytes(b"stop")

    def folder(self, name: str) -> Path:
        """A new temporary folder, gone when this process has ended, however that ends."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=workplace()))

    def call(self, function: str, payload: Mapping[str, Any], *, limit: float, place: Place | None = None) -> Any:
        """Run `function(payload)` in one child and return its answer.

        Args:
            function: `module:name`.
            payload: JSON-able; so is the answer.
            limit: seconds.
            place: the devices it is confined to; None: all.

        Raises:
            UsageError: the function raised it.
            ChildError: it raised anything else, died, or took too long.
        """
        with tempfile.TemporaryDirectory(prefix="call-", dir=workplace()) as folder:
            logs = [Path(folder) / "log"]
            outcome = self._run(function, payload, Path(folder), logs, ranked=False, limits={entry.END: limit}, place=place)
        if outcome.failure is None:
            return outcome.answers[0]
        if outcome.failure.usage:
            raise UsageError(outcome.failure.message)
        raise ChildError(outcome.failure)

    def run(
        self,
        function: str,
        payload: Mapping[str, Any],
        *,
        processes: int,
        log_folder: Path,
        limits: Mapping[str, float],
        within: float | None = None,
        place: Place | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Run `function(payload, seat)` in as many ranks.

        Args:
            log_folder: gets `rank<r>.log`, what rank r prints; appended to. Made where the folder above it is there.
            limits: seconds by phase; a phase that is not named may take as long as the first one.
            within: seconds that are left for all phases together.
            place: the devices they are confined to; None: all.
            on_phase: told when the last rank has entered a phase.

        Raises:
            Stopped: `stop` was called.
        """
        logs = [log_folder / f"rank{rank}.log" for rank in range(processes)]
        bounds = {"limits": limits, "within": within}
        with tempfile.TemporaryDirectory(prefix="launch-", dir=workplace()) as folder:
            return self._run(function, payload, Path(folder), logs, ranked=True, place=place, on_phase=on_phase, **bounds)

    def _run(
        self,
        function: str,
        payload: Mapping[str, Any],
        folder: Path,
        logs: Sequence[Path],
        *,
        ranked: bool,
        limits: Mapping[str, float],
        within: float | None = None,
        place: Place | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> Outcome:
        payload_file, temporary = folder / "payload.json", folder / "temporary"
        payload_file.write_text(json.dumps(payload))
        temporary.mkdir()
        kills_before, before = out_of_memory_kills(), Leftovers()
        deadline = None if within is None else time.monotonic() + within
        children: list[Child] = []
        try:
            for rank, log in enumerate(logs):
                order = entry.Order(
                    function=function,
                    payload_file=payload_file,
                    answer_file=folder / f"answer{rank}.json",
                    stacks_file=folder / f"stacks{rank}",
                    temporary=temporary,
                    place=place,
                    rank=rank if ranked else None,
                    size=len(logs),
                )
                children.append(self._start(order, Log(log)))
            overdue = wait(children, limits, deadline=deadline, within=within or 0.0, stop=self._stop_reader, on_phase=on_phase)
        finally:
            end(children)
            remarks = _clean_up(children, before)
        common = {"durations": durations(children), "remarks": remarks}
        late = [c.ending() for c in children if c.killed]
        if overdue is not None and late:
            return Outcome(failure=timed_out(late, limit=overdue.seconds, of=overdue.of), **common)
        failed = [c.ending() for c in children if c.answer is None and not c.killed]
        if failed:
            short = out_of_memory_kills() > kills_before
            return Outcome(failure=first_failure(failed, kernel_out_of_memory=short), **common)
        return Outcome(answers=[c.answer["answer"] for c in children], **common)

    def _start(self, order: entry.Order, log: Log) -> Child:
        """A new child.

        Raises:
            ChildError: the server that children are forked from ends before it has forked one.
        """
        with _lock:
            for _ in range(_STARTS):
                self._warm()
                receiver, sender = self._context.Pipe(duplex=False)
                printed, prints = self._context.Pipe(duplex=False)
                process = self._context.Process(target=entry.run, args=(order, sender, prints), daemon=True)
                try:
                    with _nameless_main():
                        process.start()
                except ConnectionRefusedError:  # the server has ended, and the system has not told yet
                    time.sleep(0.1)
                    continue
                except (EOFError, OSError):
                    if not self._modules:
                        break
                    self._modules = ()  # importing a framework may have been what ended the server
                    continue
                finally:
                    sender.close()
                    prints.close()
                _running.add(process.pid)
                return Child(order, process, receiver, printed, log)
        reason = "the process that children are forked from ended while it loaded torch"
        raise ChildError(Failure(status="crashed", reason=reason, rank=order.rank, phase="build"))

    def _warm(self) -> None:
        """Start the server if it does not run, in the environment that its children shall have."""
        self._context.set_forkserver_preload(["harness.launch.preload"])
        environment = {
            # The server of Python 3.11 and older knows nothing of sys.path.
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            preload.VARIABLE: " ".join(self._modules),
            preload.WORKPLACE: str(workplace()),
            preload.HARNESS: str(os.getpid()),
            "OMP_NUM_THREADS": "1",
            # Ask the driver's library, not CUDA itself, whether there is a device: a process that has started CUDA cannot be
            # forked from.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if Path("/sys/class/net/lo").exists():
            environment["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        with _environment(environment), _nameless_main():
            forkserver.ensure_running()


def _clean_up(children: Sequence[Child], before: Leftovers) -> tuple[str, ...]:
    """End what children that have ended left running, and say that and what else they left."""
    with _lock:
        _running.difference_update(child.process.pid for child in children)
        orphans = kill_orphans(_running | _others)
        # Beside other launches nobody can say whose a segment is; the last one finds it.
        left = [] if _running else before.found()
    if orphans:
        left.insert(0, f"{orphans} process{'es' if orphans > 1 else ''}, ended")
    remarks = [f"left behind: {', '.join(left)}"] if left else []
    problems = dict.fromkeys(child.log.problem for child in children if child.log.problem)
    return (*remarks, *(f"log: not kept in its file: {problem}" for problem in problems))


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a moment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _nameless_main() -> Iterator[None]:
    """Hide `__main__` from multiprocessing for a moment, which would run it again in every child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
