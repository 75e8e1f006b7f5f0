"""A run folder: what was asked for, where it ran, and one line of JSON for each cell as it ends. Imports no torch.

    run.json          what was asked for: suite, arguments, versions, and every cell in the order in which it runs
    environment.json  the machine and its software
    records.jsonl     one record a line
    records.torn      where a killed writer left half a line, that half
    records.retried   records whose cells were run again
    logs/  plots/  report.html  summary.csv

A line of `records.jsonl` is complete or absent: it is appended by one `write` and then flushed to disk, and
whatever stands behind the last line end is not a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import json
import os
import platform
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.errors import UsageError
from harness.record import SCHEMA, Record

RUN, ENVIRONMENT, RECORDS, TORN, RETRIED, LOGS = (
    "run.json",
    "environment.json",
    "records.jsonl",
    "records.torn",
    "records.retried",
    "logs",
)
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


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run folder holds."""

    folder: Path
    run: dict[str, Any]
    """`run.json`."""
    environment: dict[str, Any]
    """`environment.json`."""
    records: list[Record]
    """In the order in which the cells ended."""
    bad_lines: list[BadLine] = field(default_factory=list)
    """What could not be read; it takes no other record with it."""


def check_new(folder: Path) -> None:
    """See whether a run could be written to `folder`, leaving nothing there.

    Raises:
        UsageError: it holds another run or other files, is no folder, or is not writable.
    """
    try:
        if (folder / RUN).exists():
            with locked(folder):
                raise UsageError(
                    f"output folder '{folder}' holds another run: give --out a new or empty folder, "
                    f"or go on with that run by --resume '{folder}'"
                )
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"output folder '{folder}' is a file: give --out a new or empty folder")
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"output folder '{folder}' holds other files: give --out a new or empty folder")
        above = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    except OSError as error:
        raise _not_writable(folder, error) from None
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(
            f"output folder '{folder}' cannot be written: '{above}' is not a writable folder; give --out another place"
        )


def create(folder: Path, run: dict[str, Any], environment: dict[str, Any]) -> None:
    """Make a run folder.

    Raises:
        UsageError: see `check_new`; or another process made one there just now.
    """
    check_new(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            check_new(folder)
            (folder / LOGS).mkdir()
            write_json(folder / ENVIRONMENT, environment)
            (folder / RECORDS).touch()
            write_json(folder / RUN, {"schema": SCHEMA, **run})  # last: what has a run.json is a whole run folder
    except OSError as error:
        raise _not_writable(folder, error) from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for oneself, so that no second process runs in it meanwhile.

    Raises:
        UsageError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"run '{folder}' is still going on in another process{_holder(folder)}: wait for it, or stop it first"
            ) from None
        yield
    finally:
        os.close(descriptor)


def holder() -> dict[str, Any]:
    """What `run.json` says of the process that runs in its folder."""
    return {"pid": os.getpid(), "host": platform.node()}


def _holder(folder: Path) -> str:
    with contextlib.suppress(UsageError, KeyError):
        run = _read_json(folder / RUN)
        return f", pid {run['pid']} on {run['host']}"
    return ""


def inside(folder: Path, *names: str) -> Path:
    """A path below a run folder.

    Raises:
        UsageError: a name, or a link on the way, leads out of the folder.
    """
    path = folder.joinpath(*names)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"'{path}' leads out of the run folder '{folder}': take that link away, or start a new run")
    return path


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


def set_aside(folder: Path, statuses: Collection[str]) -> int:
    """Move the records of these statuses to `records.retried`, so that their cells have none and run again.

    Returns:
        How many were moved.

    Raises:
        NoRoom: the disk is full; the records are as they were.
    """
    run = read_whole(folder)
    moved = [record for record in run.records if record.status in statuses]
    try:
        _append_text(folder / RETRIED, "".join(record.to_line() + "\n" for record in moved))
        half = folder / f"{RECORDS}.new"
        half.unlink(missing_ok=True)
        _append_text(half, "".join(r.to_line() + "\n" for r in run.records if r.status not in statuses))
        half.replace(folder / RECORDS)
    except OSError as error:
        raise NoRoom(f"cannot set records of '{folder}' aside: {error.strerror}; make room and give --retry again") from None
    return len(moved)


def read(folder: Path | str) -> Run:
    """Read a run folder; lines that are no record are named in `bad_lines`.

    Raises:
        UsageError: it is no run folder.
    """
    folder = Path(folder)
    if not (folder / RUN).is_file():
        raise UsageError(f"'{folder}' is no run folder, it has no {RUN}: give the folder that 'hpbench run' printed")
    records, bad_lines = _records(folder / RECORDS)
    return Run(
        folder=folder,
        run=_read_json(folder / RUN),
        environment=_read_json(folder / ENVIRONMENT),
        records=records,
        bad_lines=bad_lines,
    )


def read_whole(folder: Path | str) -> Run:
    """Read a run folder for a judgement that a missing record would change; a torn last line is no record.

    Raises:
        UsageError: it is no run folder, or holds a line that is no record of this schema.
    """
    run = read(folder)
    for line in run.bad_lines:
        if not line.torn:
            raise UsageError(
                f"line {line.number} of '{run.folder / RECORDS}' is no record of schema {SCHEMA}: {line.reason}; "
                "read it with the hpbench that wrote it, or take the line out"
            )
    return run


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a small JSON file, whole or not at all."""
    half = path.with_name(path.name + ".new")
    with half.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def mend(folder: Path) -> None:
    """Set a torn last line aside, which a writer that was killed has left."""
    with contextlib.suppress(OSError):  # reading leaves it out, too, and the next record is told to make room
        descriptor = os.open(folder / RECORDS, os.O_RDWR | os.O_CLOEXEC)
        try:
            _set_torn_line_aside(descriptor, folder)
        finally:
            os.close(descriptor)


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


def _records(path: Path) -> tuple[list[Record], list[BadLine]]:
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read '{path}': {error}; give a folder that 'hpbench run' wrote") from None


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"output folder '{folder}' cannot be written: {error.strerror}; give --out another place")
