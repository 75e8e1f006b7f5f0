"""Faults in the last rank x process models: each ends with one record of the right type, phase and first failing rank, the
next cell runs as ever, nothing remains, and the server that ranks are forked from is the one that was there before.

Two processes by default; all with `./run_all.sh test -m slow tests/faults`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.record import Record
from tests.faults.conftest import remains, small_cell
from tests.faults.injected import DAEMON, DYING, SEGMENT

Go = Callable[..., Record]

MODELS = {
    "single": 1,
    "pp=2:devices": 1,
    "dp=2:ddp": 2,
    "tp=2:hand": 2,
    "pp=2:1f1b": 2,
    "tp=2:hand,dp=2:fsdp": 4,
    "pp=2:1f1b,dp=2:ddp": 4,
    "pp=2:devices,dp=4:ddp": 4,
}
"""Layout -> processes."""

ENDS = {
    "raises": ("crashed", "verify", "raised RuntimeError: the network cable is out"),
    "killed": ("crashed", "verify", "was ended by SIGKILL"),
    "segfault": ("crashed", "verify", "was ended by SIGSEGV"),
    "exits": ("crashed", "verify", "ended with exit status 0 and no result"),
    "import_error": ("crashed", "build", "raised ImportError: libframework.so.7"),
    "oom_in_build": ("oom", "build", "ran out of memory"),
    "oom_in_forward": ("oom", "verify", "ran out of memory"),
    "oom_in_backward": ("oom", "verify", "ran out of memory"),
    "oom_in_optimizer": ("oom", "verify", "ran out of memory"),
}
"""Fault -> status, phase and what the reason says of the rank."""

HANGS = {
    "stopped": ("verify", "stopped by a signal"),
    "hangs_in_build": ("build", "injected.py"),
    "hangs_in_collective": ("verify", "a wait for recv (injected.py"),
}
"""Fault -> phase and what the reason says of the last rank."""

DEFAULT = {
    *((fault, "dp=2:ddp") for fault in (*ENDS, *HANGS)),
    ("killed", "single"),
    ("oom_in_backward", "pp=2:1f1b"),
    ("raises", "pp=2:1f1b,dp=2:ddp"),
    ("stopped", "pp=2:devices"),
}


def matrix(faults: dict[str, object]) -> list[object]:
    """Every fault on every process model; what is not run by default is slow."""
    return [
        pytest.param(fault, layout, marks=[] if (fault, layout) in DEFAULT else [pytest.mark.slow])
        for fault in faults
        for layout in MODELS
        if not (fault == "hangs_in_collective" and MODELS[layout] == 1)  # one process has nobody to wait for
    ]


@pytest.fixture
def before(go: Go) -> dict[str, set[str]]:
    """What there is of ours, once everything is warm."""
    go(small_cell("single", processes=1))
    return remains()


def check_next_and_nothing_left(go: Go, before: dict[str, set[str]], layout: str) -> None:
    """The next cell of this kind is as good as any, and what there is of ours is what there was, the server included."""
    record = go(small_cell(layout, processes=MODELS[layout]))
    assert record.status == "ok", record.reason
    assert remains() == before


@pytest.mark.parametrize(("fault", "layout"), matrix(ENDS))
def test_a_rank_that_fails(go: Go, before: dict[str, set[str]], tmp_path: Path, fault: str, layout: str) -> None:
    status, phase, said = ENDS[fault]
    last = MODELS[layout] - 1
    cell = small_cell(layout, processes=MODELS[layout])
    record = go(cell, fault)
    ended = time.monotonic()
    assert (record.status, record.phase, record.failed_rank) == (status, phase, last), record.reason
    assert record.reason.startswith(f"rank {last} in {phase} {said}")
    assert not [caveat for caveat in record.caveats if caveat.startswith(("left behind", "log"))]
    log = (tmp_path / "logs" / cell.id / f"rank{last}.log").read_text()
    if DYING in log:
        died = float(log.partition(DYING)[2].split()[0])
        assert ended - died < (5 if fault != "segfault" else 10)  # a kernel that writes a core takes its time
    check_next_and_nothing_left(go, before, layout)


@pytest.mark.parametrize(("fault", "layout"), matrix(HANGS))
def test_a_rank_that_hangs(go: Go, before: dict[str, set[str]], fault: str, layout: str) -> None:
    phase, said = HANGS[fault]
    last = MODELS[layout] - 1
    record = go(small_cell(layout, processes=MODELS[layout], **{f"{phase}_limit": 3}), fault)
    assert (record.status, record.phase) == ("timeout", phase), record.reason
    # Of two ranks that wait in collectives, either may have gone astray.
    assert record.failed_rank == (None if fault == "hangs_in_collective" and record.failed_rank is None else last)
    assert said in record.reason
    for rank in range(MODELS[layout]):
        assert f"rank {rank}" in record.log_tail or f"ranks {rank}" in record.reason
    assert "(most recent call first)" in record.log_tail
    check_next_and_nothing_left(go, before, layout)


@pytest.mark.parametrize("layout", ["dp=2:ddp", *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS if m != "dp=2:ddp")])
def test_a_loss_that_is_no_number(go: Go, before: dict[str, set[str]], layout: str) -> None:
    record = go(small_cell(layout, processes=MODELS[layout]), "nan_loss")
    assert (record.status, record.phase) == ("diverged", "verify")
    check_next_and_nothing_left(go, before, layout)


@pytest.mark.parametrize("layout", ["dp=2:ddp", *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS if m != "dp=2:ddp")])
@pytest.mark.parametrize("more", [[], ["killed"]])
def test_a_daemon_is_found_in_whatever_session(go: Go, before: dict[str, set[str]], layout: str, more: list[str]) -> None:
    record = go(small_cell(layout, processes=MODELS[layout]), *more, "daemon")
    assert record.status == ("crashed" if more else "ok"), record.reason
    assert "left behind: 1 process, ended" in record.caveats
    assert not [name for name in remains()["processes"] if name.endswith(" ".join(DAEMON))]
    check_next_and_nothing_left(go, before, layout)


@pytest.mark.parametrize("layout", ["dp=2:ddp", *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS if m != "dp=2:ddp")])
def test_shared_memory_and_temporary_files_go(go: Go, before: dict[str, set[str]], layout: str) -> None:
    record = go(small_cell(layout, processes=MODELS[layout]), "killed", "leftovers")
    assert record.status == "crashed"
    assert f"left behind: shared memory {SEGMENT}, removed" in record.caveats
    assert not os.path.exists(f"/dev/shm/{SEGMENT}")
    check_next_and_nothing_left(go, before, layout)


@pytest.mark.parametrize("layout", ["dp=2:ddp", *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS if m != "dp=2:ddp")])
def test_a_log_of_100_megabytes_is_capped_and_ends_as_it_ended(
    go: Go, before: dict[str, set[str]], tmp_path: Path, layout: str
) -> None:
    cell = small_cell(layout, processes=MODELS[layout])
    record = go(cell, "chatter")
    assert record.status == "ok", record.reason
    folder = tmp_path / "logs" / cell.id
    assert (folder / f"rank{MODELS[layout] - 1}.log").read_text().endswith("the last word\n")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 9 * 2**20
    check_next_and_nothing_left(go, before, layout)
