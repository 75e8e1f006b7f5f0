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
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from harness.launch import entry, preload
from harness.launch.children import Child, durations, end, wait
from harness.launch.outcome import Failure, Outcome, first_failure, timed_out
from harness.launch.processes import adopt_orphans, out_of_memory_kills

ROOT = Path(__file__).resolve().parents[2]


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

    def __enter__(self) -> Launcher:
        adopt_orphans()
        self._warm()
        return self

    def __exit__(self, *exception: object) -> None:
        """Every call cleans up after itself; the server ends with this process."""

    def call(self, function: str, payload: Mapping[str, Any], *, limit: float) -> Any:
        """Run `function(payload)` in one child and return its answer.

        Args:
            function: `module:name`.
            payload: JSON-able; so is the answer.
            limit: seconds.

        Raises:
            UsageError: the function raised it.
            ChildError: it raised anything else, died, or took too long.
        """
        with tempfile.TemporaryDirectory(prefix="hpbench-") as folder:
            log = Path(folder) / "log"
            outcome = self._run(function, payload, Path(folder), [log], ranked=False, limits={entry.END: limit}, on_phase=None)
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
        on_phase: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Run `function(payload, seat)` in as many ranks.

        Args:
            log_folder: gets `rank<r>.log`, what rank r prints; appended to.
            limits: seconds by phase; a phase that is not named may take as long as the first one.
            on_phase: told when the last rank has entered a phase.
        """
        log_folder.mkdir(parents=True, exist_ok=True)
        logs = [log_folder / f"rank{rank}.log" for rank in range(processes)]
        with tempfile.TemporaryDirectory(prefix="hpbench-") as folder:
            return self._run(function, payload, Path(folder), logs, ranked=True, limits=limits, on_phase=on_phase)

    def _run(
        self,
        function: str,
        payload: Mapping[str, Any],
        folder: Path,
        logs: Sequence[Path],
        *,
        ranked: bool,
        limits: Mapping[str, float],
        on_phase: Callable[[str], None] | None,
    ) -> Outcome:
        payload_file = folder / "payload.json"
        payload_file.write_text(json.dumps(payload))
        kills_before = out_of_memory_kills()
        children: list[Child] = []
        try:
            for rank, log in enumerate(logs):
                order = entry.Order(
                    function=function,
                    payload_file=payload_file,
                    answer_file=folder / f"answer{rank}.json",
                    log_file=log,
                    rank=rank if ranked else None,
                    size=len(logs),
                )
                children.append(self._start(order))
            overdue = wait(children, limits, on_phase)
        finally:
            end(children)
        spent = durations(children)
        late = [c.ending() for c in children if not c.answered]
        if overdue is not None and late:
            return Outcome(failure=timed_out(late, limit=overdue), durations=spent)
        failed = [c.ending() for c in children if c.answer is None and not c.killed]
        if failed:
            short = out_of_memory_kills() > kills_before
            return Outcome(failure=first_failure(failed, kernel_out_of_memory=short), durations=spent)
        return Outcome(answers=[c.answer["answer"] for c in children], durations=spent)

    def _start(self, order: entry.Order) -> Child:
        self._warm()
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=entry.run, args=(order, sender), daemon=True)
        child = Child(order, process, receiver)
        with _nameless_main():
            process.start()
        sender.close()
        return child

    def _warm(self) -> None:
        """Start the server if it does not run, in the environment that its children shall have."""
        self._context.set_forkserver_preload(["harness.launch.preload"])
        environment = {
            # The server of Python 3.11 and older knows nothing of sys.path.
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            preload.VARIABLE: " ".join(self._modules),
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
