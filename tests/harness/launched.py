"""What tests let children do, right and wrong. Named to the launcher as `tests.harness.launched:function`."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.errors import UsageError
from harness.launch.entry import Seat


def echo(payload: dict[str, Any]) -> dict[str, Any]:
    """Answers with what it was given, and what it has."""
    return {**payload, "torch": "torch" in sys.modules, "main": sys.modules["__main__"].__dict__.get("__file__")}


def misused(payload: dict[str, Any]) -> None:
    """A person's mistake."""
    raise UsageError("unknown model 'lama-tiny': known are llama-tiny; did you mean 'llama-tiny'?")


def broken(payload: dict[str, Any]) -> None:
    """A bug."""
    raise ZeroDivisionError("no batch")


def sleeping(payload: dict[str, Any]) -> None:
    """Never answers in time."""
    time.sleep(600)


def together(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """Ranks that meet, and of which the second may do something wrong before they do."""
    import torch
    import torch.distributed as dist

    seat.report("build")
    print(f"hello from rank {seat.rank}", flush=True)
    store = dist.FileStore(str(seat.rendezvous), seat.size)
    dist.init_process_group("gloo", store=store, rank=seat.rank, world_size=seat.size)
    seat.report("measure")
    if seat.rank == 1 and "fault" in payload:
        FAULTS[payload["fault"]]()
    total = torch.full((), float(seat.rank))
    dist.all_reduce(total)
    return {"rank": seat.rank, "sum": total.item()}


def with_offspring(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """Leaves a process of its own behind, by name of its pid."""
    left = subprocess.Popen(["sleep", "600"])
    if payload["fault"]:
        time.sleep(600) if payload["fault"] == "hang" else os._exit(3)
    return {"pid": left.pid}


def _raise() -> None:
    raise RuntimeError("shapes do not match\nsecond line")


def _little_memory() -> None:
    limit = 2**30
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _torch_out_of_memory() -> None:
    import torch

    _little_memory()
    torch.zeros(2**31)


def _python_out_of_memory() -> None:
    _little_memory()
    bytearray(2**32)


FAULTS: dict[str, Callable[[], Any]] = {
    "raise": _raise,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "hang": lambda: time.sleep(600),
    "torch memory": _torch_out_of_memory,
    "python memory": _python_out_of_memory,
}
