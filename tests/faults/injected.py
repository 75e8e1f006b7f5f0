"""What can go wrong inside a rank, as instruments: each is called with the engine, the world and the cell right after the
engine is built, and does its harm on the last rank."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks.cell import Cell
from benchmarks.contract import Engine
from benchmarks.world import World

DYING = "dying at"
"""What a rank prints, with the time, before it dies."""
DAEMON = ["sleep", "86399"]
SEGMENT = "torch_left_behind"

Instrument = Callable[[Engine, World, Cell], None]


def _on_the_last_rank(harm: Callable[[Engine], None]) -> Instrument:
    def instrument(engine: Engine, world: World, cell: Cell) -> None:
        if world.rank == world.size - 1:
            harm(engine)

    return instrument


def _in_first_step(harm: Callable[[], Any]) -> Instrument:
    """Do harm, then train as if nothing had been."""

    def install(engine: Engine) -> None:
        step = engine.step
        left = [harm]

        def harmed(*arguments: Any, **options: Any) -> Any:
            while left:
                left.pop()()
            return step(*arguments, **options)

        engine.step = harmed  # type: ignore[method-assign]

    return _on_the_last_rank(install)


def _dying(harm: Callable[[], Any]) -> Callable[[], None]:
    def die() -> None:
        print(DYING, time.monotonic(), flush=True)
        harm()

    return die


def _raise() -> None:
    raise RuntimeError("the network cable is out")


def _too_much() -> None:
    """More than any limit of the tests, asked of torch's own allocator."""
    torch.empty(2**40, dtype=torch.uint8)


def _receive_what_nobody_sends() -> None:
    dist.recv(torch.zeros(1), src=0, tag=77)


def _leave_a_daemon() -> None:
    """A grandchild in a session of its own, whose parent is gone."""
    script = f"import subprocess; subprocess.Popen({DAEMON}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", script], check=True, start_new_session=True)


def _leave_things() -> None:
    """A segment of shared memory and a temporary file."""
    import tempfile

    with open(f"/dev/shm/{SEGMENT}", "wb") as segment:
        segment.write(b"left")
    tempfile.mkstemp(prefix="hpbench-left-behind")


def _chatter() -> None:
    line = b"x" * 99 + b"\n"
    for _ in range(100):
        os.write(1, line * 10_000)
    print("the last word", flush=True)


def _import_error(engine: Engine) -> None:
    raise ImportError("libframework.so.7: cannot open shared object file")


def _out_of_memory_in_forward(engine: Engine) -> None:
    engine.parts[0].module.register_forward_pre_hook(lambda *_: _too_much())


def _out_of_memory_in_backward(engine: Engine) -> None:
    engine.parts[0].module.register_full_backward_pre_hook(lambda *_: _too_much())


def _out_of_memory_in_optimizer(engine: Engine) -> None:
    register_optimizer_step_pre_hook(lambda *_: _too_much())


def nan_loss(engine: Engine, world: World, cell: Cell) -> None:
    """Every loss is no number, on every rank."""
    step = engine.step
    engine.step = lambda *a, **k: step(*a, **k)._replace(loss=torch.tensor(float("nan")))  # type: ignore[method-assign]


raises = _in_first_step(_dying(_raise))
killed = _in_first_step(_dying(lambda: os.kill(os.getpid(), signal.SIGKILL)))
segfault = _in_first_step(_dying(lambda: ctypes.string_at(0)))
exits = _in_first_step(_dying(lambda: os._exit(0)))
stopped = _in_first_step(lambda: os.kill(os.getpid(), signal.SIGSTOP))
hangs_in_collective = _in_first_step(_receive_what_nobody_sends)
hangs_in_build = _on_the_last_rank(lambda _: time.sleep(600))
import_error = _on_the_last_rank(_import_error)
oom_in_build = _on_the_last_rank(lambda _: _too_much())
oom_in_forward = _on_the_last_rank(_out_of_memory_in_forward)
oom_in_backward = _on_the_last_rank(_out_of_memory_in_backward)
oom_in_optimizer = _on_the_last_rank(_out_of_memory_in_optimizer)
daemon = _in_first_step(_leave_a_daemon)
leftovers = _in_first_step(_leave_things)
chatter = _in_first_step(_chatter)
