"""Compares two states of the code by the records of their runs, cell by cell and metric by metric. Needs no torch.

    hpbench compare results/base results/head [--markdown FILE]

BASE and HEAD are each a run folder, or a folder that holds several run folders of the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from harness import store
from harness.compare.markdown import markdown
from harness.compare.text import written
from harness.compare.verdicts import Comparison, Terms, Verdict, compare_runs

__all__ = [
    "Comparison",
    "Terms",
    "Verdict",
    "compare",
    "compare_runs",
    "differences",
    "markdown",
    "runs_in",
    "whole",
    "written",
]

Spreads = Callable[[Mapping[str, Any]], Mapping[str, float]]
"""Environment -> cell id -> run-to-run spread."""


def compare(base: Path | str, head: Path | str, *, spreads: Spreads = lambda _: {}, summary: Path | None = None) -> int:
    """Print the verdicts; returns the exit status: 0, 1 for a regression, 2 where it cannot be told.

    Args:
        spreads: gives what is known of cells on a machine.
        summary: gets the same as Markdown.

    Raises:
        UsageError: a folder is no run and holds none, or a record cannot be read.
    """
    before, after = runs_in(Path(base)), runs_in(Path(head))
    terms = Terms(
        spreads=spreads(before[0].environment),
        differences=differences(before[0].environment, after[0].environment),
    )
    comparison = compare_runs([run.records for run in before], [run.records for run in after], terms)
    print(written(comparison, str(base), str(head)))
    if summary:
        summary.write_text(markdown(comparison, str(base), str(head)))
    return comparison.exit_status


def runs_in(folder: Path) -> list[store.Run]:
    """A run folder, or every run folder within a folder.

    Raises:
        UsageError: there is no run, or a record of one cannot be read.
    """
    if not (folder / store.RUN).is_file():
        inner = sorted(path.parent for path in folder.glob(f"*/{store.RUN}"))
        if inner:
            return [whole(run) for run in inner]
        if folder.exists():
            raise UsageError(f"'{folder}' is no run and holds none: give a run folder, or a folder of run folders")
    return [whole(folder)]


def whole(folder: Path) -> store.Run:
    """A run whose every record can be read, for a judgement that a missing one would change.

    Raises:
        UsageError: it is no run, or one of its lines, which is named, is no record.
    """
    run = store.read_whole(folder)
    for line in run.bad_lines:
        raise UsageError(
            f"line {line.number} of '{folder / store.RECORDS}' is cut off: {line.reason}; "
            f"wait for the run to end, or go on with it by 'hpbench run --resume {folder}'"
        )
    return run


def differences(base: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """In what two environments differ, in words: `torch 2.12.0 against 2.13.0, driver 570 against 580`."""
    one, other = dict(_facts(base)), dict(_facts(head))
    return ", ".join(
        f"{name.split('.')[-1]} {one.get(name, 'none')} against {other.get(name, 'none')}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    )


def _facts(environment: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Facts that may make figures differ; where the suite came from and how the host is called do not."""
    found: list[tuple[str, str]] = []
    values: Sequence[tuple[str, Any]] = list(environment.items())
    for name, value in values:
        if isinstance(value, Mapping):
            found += _facts(value, f"{prefix}{name}.")
        elif name not in ("id", "host", "suite_commit", "memory_bytes"):
            found.append((f"{prefix}{name}", str(value)))
    return found
