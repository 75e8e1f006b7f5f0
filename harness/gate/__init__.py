"""Judges a change: two states of a project, or two environments, measured in turn on this machine. Imports no torch.

    hpbench gate --base main --head HEAD                             two commits of the repository one stands in
    hpbench gate --base main --head HEAD --install 'pip install .'   the same, installed into an environment of its own for each
    hpbench gate --base-python /opt/torch-2.12/bin/python            this machine's Python against another

Where the repository is hpbench itself, each side runs its own hpbench; anywhere else this one runs with the project of either
side installed, or, without `--install`, put first on the path of imports.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from harness import golden, store, suites
from harness.compare import Comparison, Terms, differences, markdown, written
from harness.gate.rounds import NAMES, settle
from harness.gate.sides import Side, checked_out
from harness.record import Record
from harness.table import counted, duration

SUMMARY, RESULT = "summary.md", "gate.json"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a gate was asked for."""

    base: str
    """A commit, branch or tag of the project; `.` is its working tree as it stands."""
    head: str
    suite: str = "gate"
    project: Path = Path(".")
    install: str | None = None
    """Shell command that installs a checkout, run in it with its side's Python first on the path."""
    pythons: tuple[str, str] = (sys.executable, sys.executable)
    """Interpreter of base and of head."""
    arguments: tuple[str, ...] = ()
    """More arguments of `hpbench run`, such as `--filter` and `--set`."""
    pairs: int = 5
    """Fewest pairs of runs."""
    most: int = 10
    """Most pairs of runs."""
    golden: Path = golden.DIRECTORY


def gate(wanted: Wanted, out: Path) -> int:
    """Measure both sides in turn until each cell's verdict is clear; print the verdicts.

    Args:
        out: gets `base/` and `head/` with their runs, `summary.md`, `gate.json`.

    Returns:
        0: nothing regressed; 1: something did, or errored; 2: it cannot be told.

    Raises:
        UsageError: what was asked for does not exist, or a side cannot run at all.
    """
    if not 1 <= wanted.pairs <= wanted.most:
        raise UsageError(
            f"--pairs {wanted.pairs} and --max-pairs {wanted.most}: give 1 or more, and no fewer at most than at least"
        )
    suite = Path(wanted.suite)
    if suite.suffix not in (".yaml", ".yml"):
        suites.load(wanted.suite)
        suite = suites.SUITES / f"{wanted.suite}.yaml"
    store.check_new(out)
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(checked_out(name, ref, wanted.project, python, wanted.install, out))
            for name, ref, python in zip(NAMES, (wanted.base, wanted.head), wanted.pythons, strict=True)
        ]
        comparison = _measured(sides, suite.resolve(), wanted, out)
    base, head = (side.title for side in sides)
    print(written(comparison, base, head))
    (out / SUMMARY).write_text(markdown(comparison, base, head))
    store.write_json(out / RESULT, _result(comparison, base, head))
    print(f"runs: {out}\nnext: hpbench compare {out / 'base'} {out / 'head'}, or hpbench report RUN for one of them")
    return comparison.exit_status


def _measured(sides: Sequence[Side], suite: Path, wanted: Wanted, out: Path) -> Comparison:
    environments: dict[str, dict] = {}
    begun = time.monotonic()

    def measure(name: str, number: int, cells: Sequence[Cell] | None) -> list[Record]:
        side = sides[NAMES.index(name)]
        folder = out / name / f"{number:02}"
        if cells is None:
            arguments = [str(suite), *wanted.arguments]
        else:
            arguments = [str(_suite_of(cells, out / "open" / f"{number:02}.yaml"))]
        run = side.run(arguments, folder)
        environments.setdefault(name, run.environment)
        return run.records

    def terms() -> Terms:
        base, head = environments["base"], environments["head"]
        # With two environments the spread is that of the machine's own; the file of the base's is nearest.
        return Terms(
            spreads=golden.spreads_for(base, wanted.golden),
            differences=differences(base, head),
            environments_may_differ=True,
            looking=True,
        )

    def progress(pair: int, open_cells: int) -> None:
        spent = duration(time.monotonic() - begun)
        left = f"{counted(open_cells, 'cell')} not clear yet" if open_cells else "all clear"
        print(f"pair {pair} of {wanted.pairs} to {wanted.most}: {left}; {spent} so far", file=sys.stderr, flush=True)

    return settle(measure, terms, pairs=wanted.pairs, most=wanted.most, progress=progress)


def _suite_of(cells: Sequence[Cell], path: Path) -> Path:
    """A suite of exactly these cells; only what is not the default is written, so that an older hpbench can read it."""
    groups = []
    for cell in cells:
        group = cell.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"processes", "devices"})
        groups.append({"layout": str(cell.layout), **group})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"description": "cells whose verdict is not clear yet", "cells": groups}))
    return path


def _result(comparison: Comparison, base: str, head: str) -> dict:
    return {
        "schema": 1,
        "base": base,
        "head": head,
        "exit_status": comparison.exit_status,
        "verdicts": [vars(verdict) for verdict in comparison.verdicts],
        "notes": list(comparison.notes),
    }
