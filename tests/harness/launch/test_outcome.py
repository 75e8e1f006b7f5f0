"""Which of several failing ranks is named as the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.launch.outcome import Ending, first_failure, timed_out


def ending(rank: int, at: float, message: str | None = None, **fields: Any) -> Ending:
    error = None if message is None else {"type": fields.pop("type", "RuntimeError"), "message": message}
    return Ending(**{"rank": rank, "at": at, "phase": "measure", "exit_code": 1, "error": error, "log_tail": "", **fields})


def test_an_echo_is_not_the_cause_though_it_came_first() -> None:
    echo = ending(0, 1.0, "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4012")
    assert first_failure([echo, ending(1, 2.0, "bad shape")], kernel_out_of_memory=False).rank == 1


def test_what_an_exception_was_raised_from_is_what_counts() -> None:
    wrapped = {"type": "RuntimeError", "message": "Failed to run stage backward"}
    memory = {**wrapped, "causes": [{"type": "RuntimeError", "message": "DefaultCPUAllocator: can't allocate memory: x"}]}
    failure = first_failure([replace(ending(0, 1.0), error=memory)], kernel_out_of_memory=False)
    assert failure.reason == "rank 0 in measure ran out of memory: DefaultCPUAllocator: can't allocate memory: x"
    echo = {**wrapped, "causes": [{"type": "RuntimeError", "message": "Connection closed by peer"}]}
    assert replace(ending(0, 1.0), error=echo).echo


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


def test_a_fault_of_the_device_is_not_out_of_memory() -> None:
    illegal = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"
    assert first_failure([ending(0, 1.0, illegal)], kernel_out_of_memory=True).status == "crashed"


def test_an_abort_for_want_of_memory_is_out_of_memory() -> None:
    tail = "warming up\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    aborted = ending(0, 1.0, exit_code=-6, log_tail=tail)
    assert first_failure([aborted], kernel_out_of_memory=False).status == "oom"
    other = ending(0, 1.0, exit_code=-6, log_tail="terminate called after throwing an instance of 'std::logic_error'\n")
    assert first_failure([other], kernel_out_of_memory=False).reason == "rank 0 in measure was ended by SIGABRT"


def test_what_ended_with_its_server_says_so() -> None:
    lost = [ending(0, 1.0, exit_code=255)]
    assert "together with the server" in first_failure(lost, kernel_out_of_memory=False).reason
    assert first_failure(lost, kernel_out_of_memory=True).status == "oom"


def test_the_rank_that_stayed_behind_is_named_when_one_hangs() -> None:
    failure = timed_out([ending(0, 5.0), ending(1, 2.0, phase="build"), ending(2, 5.0)], limit=30, of="build")
    assert (failure.rank, failure.phase) == (1, "build")
    assert failure.reason.startswith("rank 1 did not finish build in 30 s: ")


def test_a_cell_that_takes_too_long_says_where_it_was() -> None:
    failure = timed_out([ending(0, 5.0), ending(1, 5.0)], limit=60, of="cell")
    assert failure.reason.startswith("2 ranks did not finish the cell in its 60 s, and were in measure: ranks 0, 1 ")


def test_a_rank_that_a_signal_stopped_is_the_cause_of_a_hang() -> None:
    waits = ending(0, 5.0, stacks=stack("torch/distributed/distributed_c10d.py", "all_reduce"))
    failure = timed_out([waits, ending(1, 5.0, stopped=True)], limit=30, of="measure")
    assert failure.rank == 1
    assert "rank 0 in a wait for all_reduce (measure.py:9 in _time); rank 1 in an unknown place" in failure.reason
    assert "stopped by a signal" in failure.reason


def stack(file: str, function: str) -> str:
    """What faulthandler writes of a process whose main thread is in a function that measurement has called."""
    return (
        'Thread 0x00007f01 (most recent call first):\n  File "/usr/lib/threading.py", line 1 in wait\n\n'
        f'Current thread 0x00007f02 (most recent call first):\n  File "/site-packages/{file}", line 7 in {function}\n'
        '  File "/x/harness/measure.py", line 9 in _time\n  File "/x/harness/launch/entry.py", line 3 in run\n'
    )
