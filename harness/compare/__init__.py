"""Compares two states of the code by the records of their runs, cell by cell and metric by metric. Needs no torch.

    hpbench compare results/base results/head

BASE and HEAD are each a run folder, or a folder that holds several run folders of the same state.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.errors import UsageError
from harness import store
from harness.compare.text import written
from harness.compare.verdicts import Comparison, Verdict, compare_runs
from harness.record import Record

__all__ = ["Comparison", "Verdict", "compare", "compare_runs", "runs_in", "written"]


def compare(base: Path | str, head: Path | str) -> int:
    """Print the verdicts; returns the exit status: 0, 1 for a regression, 2 where it cannot be told.

    Raises:
        UsageError: a folder is no run and holds none.
    """
    comparison = compare_runs(runs_in(Path(base)), runs_in(Path(head)))
    print(written(comparison, str(base), str(head)))
    return comparison.exit_status


def runs_in(folder: Path) -> list[list[Record]]:
    """The records of a run folder, or of every run folder within a folder.

    Raises:
        UsageError: there is no run.
    """
    if not (folder / store.RUN).is_file():
        inner = sorted(path.parent for path in folder.glob(f"*/{store.RUN}"))
        if inner:
            return [store.read_whole(run).records for run in inner]
        if folder.exists():
            raise UsageError(f"'{folder}' is no run and holds none: give a run folder, or a folder of run folders")
    return [store.read_whole(folder).records]
