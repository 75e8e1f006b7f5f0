"""Which of several failing ranks is named as the cause."""

from __future__ import annotations

from typing import Any

from harness.launch.outcome import Ending, first_failure, timed_out


def ending(rank: int, at: float, message: str | None = None, **fields: Any) -> Ending:
    error = None if message is None else {"type": fields.pop("type", "RuntimeError"), "message": message}
    return Ending(**{"rank": rank, "at": at, "phase": "measure", "exit_code": 1, "error": error, "log_tail": "", **fields})


def test_an_echo_is_not_the_cause_though_it_came_first() -> None:
    echo = ending(0, 1.0, "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4012")
    assert first_failure([echo, ending(1, 2.0, "bad shape")], kernel_out_of_memory=False).rank == 1


def test_of_several_causes_the_earliest_counts() -> None:
    assert first_failure([ending(0, 2.0, "late"), ending(1, 1.0, "early")], kernel_out_of_memory=False).rank == 1


def test_a_killed_rank_is_a_cause_beside_echoes() -> None:
    killed = ending(2, 3.0, exit_code=-9)
    failure = first_failure([ending(0, 1.0, "Connection reset by peer"), killed], kernel_out_of_memory=False)
    assert (failure.rank, failure.status, failure.reason) == (2, "crashed", "rank 2 in measure was ended by SIGKILL")


def test_a_kill_by_the_kernel_for_want_of_memory_is_out_of_memory() -> None:
    assert first_failure([ending(0, 1.0, exit_code=-9)], kernel_out_of_memory=True).status == "oom"
    assert first_failure([ending(0, 1.0, exit_code=-11)], kernel_out_of_memory=True).status == "crashed"


def test_every_way_of_running_out_of_memory_is_known() -> None:
    for kind, message in [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        ("MemoryError", ""),
        ("OSError", "[Errno 12] Cannot allocate memory"),
    ]:
        assert first_failure([ending(0, 1.0, message, type=kind)], kernel_out_of_memory=False).status == "oom"


def test_the_rank_that_stayed_behind_is_named_when_one_hangs() -> None:
    failure = timed_out([ending(0, 5.0), ending(1, 2.0, phase="build"), ending(2, 5.0)], limit=30)
    assert (failure.rank, failure.phase, failure.reason) == (1, "build", "rank 1 did not finish build in 30 s")
