"""Writes a run in formats that other programs read, one file each: found by being in this folder. Imports no torch.

    hpbench export RUN --format junit [--out FILE]

A format is a module with a function `export(run: store.Run) -> str`. Its name is that of the file with hyphens for
underscores; a file that begins with `_` is a helper. Only cells that ended ok have figures; formats that know failures hold
the others, too.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.errors import UsageError, unknown
from harness.compare import whole
from harness.compare.verdicts import title
from harness.record import Record


def formats() -> list[str]:
    """The names of all formats."""
    return sorted(f.stem.replace("_", "-") for f in Path(__file__).parent.glob("[!_]*.py"))


def export(folder: Path, name: str) -> str:
    """A run in the format `name`.

    Raises:
        UsageError: no such format, or it needs a package that is not installed, or a record cannot be read.
    """
    if name not in formats():
        raise unknown("format", name, formats())
    run = whole(folder)
    try:
        return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").export(run)
    except ModuleNotFoundError as error:
        raise UsageError(f"format {name} needs {error.name}, which is not installed: pip install 'hpbench[ci]'") from None


def names(records: list[Record]) -> dict[str, str]:
    """Cell id -> its title; see `names_of`."""
    return names_of([record.cell for record in records])


def names_of(cells: Sequence[Cell]) -> dict[str, str]:
    """Cell id -> its title; cells that differ in more than that have their id in it, so that each name stands once."""
    titles = {cell.id: title(cell) for cell in cells}
    counts = list(titles.values())
    return {cell: text if counts.count(text) == 1 else f"{text} [{cell}]" for cell, text in titles.items()}


def latest(records: list[Record]) -> list[Record]:
    """One record for each cell: the last, where a resumed run tried again."""
    return list({record.cell_id: record for record in records}.values())


def extra_info(record: Record) -> dict[str, Any]:
    """What stands beside the times of a cell: its other figures, and what verified it."""
    figures = {name: metric.value for name, metric in record.metrics.items()}
    parity = record.verification.verdict if record.verification else None
    return {"cell_id": record.cell_id, "environment_id": record.environment_id, "parity": parity, **figures}
