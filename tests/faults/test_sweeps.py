"""Whole runs that are killed, interrupted, robbed of their disk or folder, and resumed: one right record for each cell.

The long one: `./run_all.sh test -m slow tests/faults/test_sweeps.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from harness import run, store
from harness.launch.workplace import PREFIX
from harness.record import Record
from tests.faults import sweep
from tests.harness.test_run import planned, prepared, record

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def started(folder: Path, count: int, temporary: Path) -> Iterator[subprocess.Popen]:
    """The sweep, in a process of its own that keeps its temporary files apart; afterwards nothing of it remains."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "tests.faults.sweep", str(folder), str(count)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        family: set[psutil.Process] = set()
        process.family = family  # type: ignore[attr-defined]
        yield process
        with contextlib.suppress(psutil.Error):
            family |= set(psutil.Process(process.pid).children(recursive=True))
        process.wait(timeout=120)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    deadline = time.monotonic() + 20
    while list(temporary.glob(f"{PREFIX}*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(temporary.glob(f"{PREFIX}*"))


def kill(process: subprocess.Popen) -> None:
    """SIGKILL, with all that is below it remembered."""
    process.family |= set(psutil.Process(process.pid).children(recursive=True))  # type: ignore[attr-defined]
    process.kill()


def wait_for_records(folder: Path, more_than: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if (folder / store.RUN).exists() and len(store.read(folder).records) > more_than:
            return
        time.sleep(0.02)


def check(folder: Path, count: int) -> None:
    """One record for each cell, each of the right kind, in lines that are all whole."""
    held = store.read_whole(folder)
    assert not held.bad_lines and held.run["state"] == "finished"
    assert sorted(r.cell_id for r in held.records) == sorted(cell.id for cell in sweep.cells(count))
    for r in held.records:
        fault = sweep.fault(r.cell)
        assert r.status == (sweep.FAULTS[fault] if fault else "ok"), (fault, r.reason)
        assert r.failed_rank == (r.cell.processes - 1 if fault else None)


@pytest.mark.parametrize(("count", "kills"), [(6, 1), pytest.param(60, 5, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_at_random_moments_and_resumed_is_whole(tmp_path: Path, count: int, kills: int) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    draw = random.Random(0)
    for _ in range(kills):
        before = len(store.read(folder).records) if (folder / store.RUN).exists() else -1
        with started(folder, count, temporary) as process:
            wait_for_records(folder, before, process)
            time.sleep(draw.uniform(0, 3 if count > 6 else 0.5))
            kill(process)
    with started(folder, count, temporary) as process:
        assert process.stderr is not None
        process.stderr.read()
    assert process.returncode == 0
    check(folder, count)


def test_ctrl_c_once_finishes_the_record_and_twice_stops_at_once(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    with started(folder, 9, temporary) as process:
        wait_for_records(folder, 0, process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == run.INTERRUPTED
    assert "finishing what runs" in said and f"go on with: hpbench run --resume {folder}" in said
    some = store.read(folder)
    assert not some.bad_lines and 1 < len(some.records) < 9 and some.run["state"] == "interrupted"
    with started(folder, 9, temporary) as process:
        wait_for_records(folder, len(some.records), process)
        process.family |= set(psutil.Process(process.pid).children(recursive=True))  # type: ignore[attr-defined]
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        process.stderr.read()
    assert process.returncode == run.INTERRUPTED
    with started(folder, 9, temporary) as process:
        assert process.stderr is not None
        process.stderr.read()
    check(folder, 9)


def test_a_second_run_in_the_folder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = prepared(tmp_path, planned(1))

    def again(cell: Cell) -> Record:
        for second in (lambda: run.go(folder, record), lambda: prepared(tmp_path, planned(1))):
            with pytest.raises(UsageError, match=f"still going on in another process, pid {os.getpid()} on "):
                second()
        return record(cell)

    assert run.go(folder, again)


def test_a_folder_that_is_gone_stops_the_run_with_one_sentence(tmp_path: Path) -> None:
    folder = prepared(tmp_path, planned(2))

    def deleted(cell: Cell) -> Record:
        subprocess.run(["rm", "-r", str(folder)], check=True)
        return record(cell)

    with pytest.raises(store.NoRoom, match="is gone"):
        run.go(folder, deleted)
    assert not folder.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs more rights")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_the_run_and_tears_no_record(small_disk: Path) -> None:
    folder = prepared(small_disk, planned(40))
    ballast = small_disk / "ballast"

    def filling(cell: Cell) -> Record:
        if not ballast.exists():
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        return record(cell)

    with pytest.raises(
        store.NoRoom, match=f"No space left on device; make room, then go on with: hpbench run --resume {folder}"
    ):
        run.go(folder, filling)
    some = store.read_whole(folder).records
    assert len(some) < 40
    ballast.unlink()
    assert run.go(folder, record)
    assert len(store.read_whole(folder).records) == 40
    assert len({r.cell_id for r in store.read(folder).records}) == 40


def test_statuses_are_retried_and_their_records_kept_aside(tmp_path: Path) -> None:
    folder = prepared(tmp_path, planned(4))
    statuses = iter(["ok", "oom", "crashed", "timeout"])
    run.go(folder, lambda cell: record(cell, next(statuses)))
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"torn')
    seen: list[Cell] = []
    assert run.go(folder, lambda cell: seen.append(cell) or record(cell), retry=["oom", "timeout"])
    assert sorted(r.status for r in store.read_whole(folder).records) == ["crashed", "ok", "ok", "ok"]
    assert len(seen) == 2
    aside = [Record.from_line(line) for line in (folder / "records.retried").read_text().splitlines()]
    assert sorted(r.status for r in aside) == ["oom", "timeout"]
    assert (folder / "records.torn").read_text() == '{"torn\n'


@pytest.mark.parametrize(
    "broken", ["raise OSError('libcudart.so.13: cannot open shared object file')", "import os; os.abort()"]
)
def test_a_framework_that_fails_as_it_is_imported_takes_only_its_own_cells_with_it(tmp_path: Path, broken: str) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text(broken)
    (tmp_path / "mine.yaml").write_text(
        "description: one of them is broken\n"
        "defaults: {batch: {global: 4, sequence: 16}, protocol: {measure_steps: 0}, model: 'llama-tiny[blocks=2]'}\n"
        "cells: [{layout: ['dp=2:zero1', 'dp=2:ddp']}]\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "harness.cli", "run", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {str(r.cell.layout): r for r in store.read(tmp_path / "run").records}
    assert {layout: r.status for layout, r in found.items()} == {"dp=2:zero1": "skipped", "dp=2:ddp": "ok"}
    assert ("libcudart.so.13" if "OSError" in broken else "SIGABRT") in found["dp=2:zero1"].reason


def test_what_a_process_left_that_died_with_its_server_goes_with_the_next_start() -> None:
    stale = Path(tempfile.mkdtemp(prefix=PREFIX))
    (stale / "in-use").touch()
    (stale / "parameters").write_text("many")
    script = "from harness.launch.workplace import workplace; print(workplace())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert not stale.exists()
    Path(done.stdout.strip(), "in-use").unlink()
    Path(done.stdout.strip()).rmdir()
