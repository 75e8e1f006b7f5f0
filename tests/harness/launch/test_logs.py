"""Logs are bounded, and their end is there even where their file is not."""

from __future__ import annotations

from pathlib import Path

from harness.launch import logs
from harness.launch.logs import Log


def test_a_long_log_keeps_its_end_within_the_bound(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 10_000)
    log = Log(tmp_path / "log" / "rank0.log")
    lines = [b"line %06d\n" % number for number in range(5000)]
    for line in lines:
        log.write(line)
    log.close()
    kept = (tmp_path / "log" / "rank0.log.before").read_bytes() + (tmp_path / "log" / "rank0.log").read_bytes()
    assert 5_000 <= len(kept) <= 10_000
    assert b"".join(lines).endswith(kept)
    assert log.tail().endswith("line 004999\n") and log.problem is None


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("yesterday\n")
    log = Log(tmp_path / "rank0.log")
    log.write(b"today\n")
    assert (tmp_path / "rank0.log").read_text() == "yesterday\ntoday\n"
    assert log.tail() == "today\n"


def test_a_file_that_cannot_be_written_costs_the_file_alone(tmp_path: Path) -> None:
    missing, full = Log(tmp_path / "gone" / "logs" / "rank0.log"), Log(Path("/dev/full"))
    for log in (missing, full):
        log.write(b"the reason\n")
        log.close()
        assert log.tail() == "the reason\n"
    assert "No such file" in missing.problem and "No space left" in full.problem
    assert not (tmp_path / "gone").exists()
