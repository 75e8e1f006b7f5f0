"""The lines of `records.jsonl`: appended whole or not at all, set aside, and read one by one. Imports no torch."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.errors import UsageError
from harness.record import SCHEMA, Record
from harness.store.folder import RECORDS, RETRIED, TORN

LONGEST_REASON = 400
"""Characters of a bad line's reason, which may quote the line."""


class NoRoom(UsageError):
    """The disk is full, or what was written to is gone."""


@dataclass(frozen=True, kw_only=True)
class BadLine:
    """A line of `records.jsonl` that is no record."""

    number: int
    """From 1."""
    reason: str
    """Why it is none, in one clause."""
    torn: bool = False
    """Whether it is a last line without its end: a writer was stopped, or is writing."""


def append(folder: Path, record: Record) -> None:
    """Add one record, whole or not at all.

    Raises:
        OSError: the disk is full or the folder is gone; nothing of the record is left in the file.
    """
    line = record.to_line().encode() + b"\n"
    descriptor = os.open(folder / RECORDS, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _set_torn_line_aside(descriptor, folder)
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, line) != len(line):
            os.ftruncate(descriptor, size)
            raise OSError(f"no room for a record of {len(line)} bytes in '{folder / RECORDS}'")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(folder: Path, kept: Sequence[Record], moved: Sequence[Record]) -> None:
    """Leave `kept` in `records.jsonl` and add `moved` to `records.retried`.

    Raises:
        NoRoom: the disk is full; the records are as they were.
    """
    try:
        _append_text(folder / RETRIED, "".join(record.to_line() + "\n" for record in moved))
        half = folder / f"{RECORDS}.new"
        half.unlink(missing_ok=True)
        _append_text(half, "".join(record.to_line() + "\n" for record in kept))
        half.replace(folder / RECORDS)
    except OSError as error:
        raise NoRoom(f"cannot set records of '{folder}' aside: {error.strerror}; make room and give --retry again") from None


def mend(folder: Path) -> None:
    """Set a torn last line aside, which a writer that was killed has left."""
    with contextlib.suppress(OSError):  # reading leaves it out, too, and the next record is told to make room
        descriptor = os.open(folder / RECORDS, os.O_RDWR | os.O_CLOEXEC)
        try:
            _set_torn_line_aside(descriptor, folder)
        finally:
            os.close(descriptor)


def parse(path: Path) -> tuple[list[Record], list[BadLine]]:
    """The records of a file, in its order, and the lines that are none."""
    records, bad = [], []
    with path.open("rb") if path.exists() else io.BytesIO() as lines, _no_collection():
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                reason = "it has no end: its writer was stopped, or is still writing"
                bad.append(BadLine(number=number, reason=reason, torn=True))
                break
            try:
                record = Record.from_line(line.decode())
            except (ValidationError, UnicodeDecodeError) as error:
                bad.append(BadLine(number=number, reason=_why(line, error)))
                continue
            if record.schema_ == SCHEMA:
                records.append(record)
            else:
                bad.append(BadLine(number=number, reason=_other_schema(record.schema_)))
    return records, bad


def _append_text(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _set_torn_line_aside(descriptor: int, folder: Path) -> None:
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    content = os.pread(descriptor, size, 0)
    end = content.rfind(b"\n") + 1
    with (folder / TORN).open("ab") as aside:
        aside.write(content[end:] + b"\n")
    os.ftruncate(descriptor, end)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Records hold no cycles, and the collector, walking all of them again and again, takes as long as reading does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _why(line: bytes, error: ValidationError | UnicodeDecodeError) -> str:
    """What is wrong with a line, its schema before anything else."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict) and value.get("schema", SCHEMA) != SCHEMA:
            return _other_schema(value["schema"])
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"])) or "the line"
    return f"{place}: {problem['msg']}"[:LONGEST_REASON]


def _other_schema(given: Any) -> str:
    return f"it is of schema {given!r:.40}, and this hpbench reads schema {SCHEMA}"
