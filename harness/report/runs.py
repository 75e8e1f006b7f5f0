"""A run folder as the report sees it: a name among the runs of one report, and its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from harness import store
from harness.record import Record
from harness.unlike import unlike


@dataclass(frozen=True, kw_only=True)
class Run:
    """One execution of a suite."""

    name: str
    """The folder's name, made unique among the runs of one report."""
    records: tuple[Record, ...]
    """One per cell, in the order in which the cells ended."""
    environment: dict[str, Any] = field(default_factory=dict)
    """`environment.json`: the machine, versions and settings."""
    about: dict[str, Any] = field(default_factory=dict)
    """`run.json`: suite, arguments, versions."""
    bad_lines: tuple[store.BadLine, ...] = ()
    """Lines of `records.jsonl` that are no record."""

    @property
    def device_memory_bytes(self) -> int | None:
        """What one device holds, where the environment says so; on CPU the machine's memory, which all ranks share."""
        site = self.environment.get("site")
        given = site.get("memory_bytes") if isinstance(site, dict) else None
        return given if isinstance(given, int) and given > 0 else None


def read(folders: Sequence[Path | str]) -> list[Run]:
    """Read run folders, in the order given.

    Raises:
        UsageError: a folder is no run, or stands twice, or none was given.
    """
    folders = [Path(folder).resolve() for folder in folders]
    if not folders:
        raise UsageError("no run was given: name one or several run folders, for example 'results/<time>-cpu'")
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice:
        raise UsageError(f"run '{twice}' was given twice: a report sets different runs side by side; name each once")
    runs = []
    for name, folder in zip(_unique([folder.name for folder in folders]), folders, strict=True):
        stored = store.read(folder)
        # A resumed run may have tried a cell again; the last word counts.
        records = _flagged({record.cell_id: record for record in stored.records})
        bad = tuple(stored.bad_lines)
        runs.append(Run(name=name, records=records, environment=stored.environment, about=stored.run, bad_lines=bad))
    return runs


def _flagged(records: dict[str, Record]) -> tuple[Record, ...]:
    """The records, with a caveat where a cell keeps something in another dtype than its neighbours, which only all tell."""
    found = unlike(records.values())
    return tuple(
        record.model_copy(update={"caveats": [*record.caveats, found[cell_id]]}) if cell_id in found else record
        for cell_id, record in records.items()
    )


def _unique(names: list[str]) -> list[str]:
    """Runs of the same name in different places are told apart by a number."""
    return [f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]
