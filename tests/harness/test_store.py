"""The store: a line is complete or absent, whatever is killed when."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from harness import store
from harness.record import Metric, Record

ROOT = Path(__file__).parents[2]


def record(seed: int = 0, **fields) -> Record:
    cell = Cell(seed=seed)
    values = {
        "run_id": "r",
        "cell_id": cell.id,
        "time": "2025-01-01T00:00:00Z",
        "environment_id": "e",
        "cell": cell,
        "status": "ok",
    }
    return Record(**{**values, **fields})


@pytest.fixture
def folder(tmp_path):
    store.create(tmp_path / "run", {"run_id": "r"}, {"id": "e"})
    return tmp_path / "run"


def test_what_is_appended_is_read_back_in_order(folder):
    records = [record(seed) for seed in range(3)]
    for r in records:
        store.append(folder, r)
    run = store.read(folder)
    assert run.records == records
    assert run.run == {"schema": 1, "run_id": "r"}
    assert run.environment == {"id": "e"}


def test_a_torn_last_line_is_no_record(folder):
    store.append(folder, record(1))
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"schema": 1, "run_')
    run = store.read(folder)
    assert [r.cell.seed for r in run.records] == [1]
    assert [(line.number, line.torn) for line in run.bad_lines] == [(2, True)]
    assert store.read_whole(folder).records == run.records


def test_the_next_append_sets_a_torn_line_aside(folder):
    store.append(folder, record(1))
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"schema": 1, "run_')
    store.append(folder, record(2))
    assert [r.cell.seed for r in store.read(folder).records] == [1, 2]
    assert (folder / "records.torn").read_text() == '{"schema": 1, "run_\n'


def test_every_complete_line_is_a_record_whenever_the_writer_is_killed(folder):
    script = """
import sys
from pathlib import Path
from harness import store
from tests.harness.test_store import record
for seed in range(10**6):
    store.append(Path(sys.argv[1]), record(seed, log_tail="x" * 20_000))
"""
    records = folder / "records.jsonl"
    draw = random.Random(0)
    for _ in range(3):
        before = records.stat().st_size
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        writer = subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment)
        while records.stat().st_size == before:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.1))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        written = store.read(folder).records
        assert len(written) == records.read_bytes().count(b"\n") > 0
    assert len(written[-1].log_tail) == 20_000


def test_half_a_write_leaves_nothing(folder, monkeypatch):
    store.append(folder, record(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:10]))
    with pytest.raises(OSError, match="no room"):
        store.append(folder, record(2))
    monkeypatch.undo()
    assert (folder / "records.jsonl").read_bytes().endswith(b"}\n")
    assert [r.cell.seed for r in store.read(folder).records] == [1]


HOSTILE = {
    "status": lambda line: json.dumps({**json.loads(line), "status": "fine"}).encode(),
    "it is of schema 7": lambda line: json.dumps({**json.loads(line), "schema": 7}).encode(),
    "it is of schema 'x'": lambda line: json.dumps({"schema": "x", "new": 1}).encode(),
    "it is not UTF-8": lambda line: b"\xff\xfe",
    "the line": lambda line: b"[1, 2",
    "metrics.step_seconds.value": lambda line: json.dumps(
        {**json.loads(line), "metrics": {"step_seconds": {"value": None, "unit": "s"}}}
    ).encode(),
}
"""By the beginning of the reason: what makes a line of a good one."""


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_line_that_is_no_record_is_named_and_takes_no_other_with_it(folder, reason):
    store.append(folder, record(1))
    with (folder / "records.jsonl").open("ab") as file:
        file.write(HOSTILE[reason](record(2).to_line()) + b"\n")
    store.append(folder, record(3))
    run = store.read(folder)
    assert [r.cell.seed for r in run.records] == [1, 3]
    (bad,) = run.bad_lines
    assert bad.number == 2 and bad.reason.startswith(reason) and len(bad.reason) < 500
    with pytest.raises(UsageError, match=r"line 2 of '.*records.jsonl' is no record of schema 1: "):
        store.read_whole(folder)


def test_what_is_no_number_is_read_back(folder):
    metrics = {"final_loss": Metric(value=float("nan"), unit="nats", low=float("-inf"))}
    store.append(folder, record(1, metrics=metrics))
    (read,) = store.read(folder).records
    assert math.isnan(read.metrics["final_loss"].value) and read.metrics["final_loss"].low == float("-inf")
    line = (folder / "records.jsonl").read_text()
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.parametrize("content", ["run.json", "notes.txt"])
def test_a_folder_in_use_is_refused_and_left_alone(tmp_path, content):
    (tmp_path / content).write_text("{}")
    with pytest.raises(UsageError, match="holds"):
        store.create(tmp_path, {}, {})
    assert [f.name for f in tmp_path.iterdir()] == [content]


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(UsageError, match="output folder"):
            store.create(place, {}, {})


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no run folder"):
        store.read(tmp_path)


def test_a_run_folder_belongs_to_one_process_at_a_time(folder):
    with store.locked(folder), pytest.raises(UsageError, match="still going on"), store.locked(folder):
        pass
    with store.locked(folder):
        pass
