"""A run folder read back, and its records sorted out for another try. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from harness.record import SCHEMA, Record
from harness.store import lines
from harness.store.folder import ENVIRONMENT, RECORDS, RUN, read_json
from harness.store.lines import BadLine


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


def read(folder: Path | str) -> Run:
    """Read a run folder; lines that are no record are named in `bad_lines`.

    Raises:
        UsageError: it is no run folder.
    """
    folder = Path(folder)
    if not (folder / RUN).is_file():
        raise UsageError(f"'{folder}' is no run folder, it has no {RUN}: give the folder that 'hpbench run' printed")
    records, bad_lines = lines.parse(folder / RECORDS)
    return Run(
        folder=folder,
        run=read_json(folder / RUN),
        environment=read_json(folder / ENVIRONMENT),
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


def set_aside(folder: Path, statuses: Collection[str]) -> int:
    """Move the records of these statuses to `records.retried`, so that their cells have none and run again.

    Returns:
        How many were moved.

    Raises:
        NoRoom: the disk is full; the records are as they were.
    """
    records = read_whole(folder).records
    moved = [record for record in records if record.status in statuses]
    lines.replace(folder, [record for record in records if record.status not in statuses], moved)
    return len(moved)
