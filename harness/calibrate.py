"""Runs one and the same state several times and keeps how much its cells vary. Imports no torch.

    hpbench calibrate gate [--runs 10]

Writes the golden file of this machine (`harness.golden`): each cell's run-to-run spread, from which follows the least change
of a time that a gate counts, and its exact figures.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import golden, store, suites
from harness.compare.shift import LEAST_CHANGE, spread
from harness.compare.verdicts import title
from harness.gate.sides import WORKING_TREE, checked_out
from harness.record import Record
from harness.report.words import amount
from harness.table import counted, text_table

FEWEST = 3
"""Runs below which a spread is a guess."""
NOISY = 0.05
"""A spread above which a gate of the cell catches only what anybody would see: a change must be twice as large."""


def calibrate(suite: str, arguments: Sequence[str], runs: int, out: Path, directory: Path = golden.DIRECTORY) -> int:
    """Measure, write the golden file, and print the spreads.

    Args:
        arguments: more arguments of `hpbench run`.
        directory: where golden files are.

    Returns:
        0; 1 where a cell failed; 2 where no cell has figures.

    Raises:
        UsageError: the suite does not exist or cannot run here.
    """
    path = Path(suite).resolve() if suite.endswith((".yaml", ".yml")) else suites.SUITES / f"{suite}.yaml"
    suites.load(suite)
    store.check_new(out)
    found: list[store.Run] = []
    with checked_out("base", WORKING_TREE, Path(__file__).parents[1], sys.executable, None, out) as side:
        for number in range(1, runs + 1):
            found.append(side.run([str(path), *arguments], out / f"{number:02}"))
            print(f"run {number} of {runs}: {counted(len(found[-1].records), 'cell')}", file=sys.stderr, flush=True)
    return write(found, directory)


def write(runs: Sequence[store.Run], directory: Path) -> int:
    """Write the golden file of runs of one state, and print what was found; returns the exit status."""
    cells = golden.measured(runs)
    spreads = {cell: spread(_times(records)) for cell, records in cells.items() if len(_times(records)) >= FEWEST}
    target = golden.path_of(runs[0].environment, directory)
    made = golden.made(runs, spreads, golden.read(target))
    golden.save(made, target)
    header = ("cell", "name", "runs", "step", "spread", "counts from", "exact figures")
    print(text_table(header, [_row(cell, records, spreads.get(cell), made) for cell, records in cells.items()]))
    for cell, value in spreads.items():
        if value > NOISY:
            print(
                f"too noisy to gate: {cell} {made.cells[cell].name} varies by {value:.1%} from run to run: only a change of "
                f"over {2 * value:.0%} counts; measure more steps, or leave other work on this machine"
            )
    failed = {r.cell_id: r.reason for run in runs for r in run.records if r.status not in ("ok", "skipped")}
    for cell, reason in failed.items():
        print(f"without figures: {cell}: {reason}")
    print(f"golden file: {target}\nnext: git add '{target}' && git commit")
    return 2 if not cells else 1 if failed else 0


def _times(records: Sequence[Record]) -> list[float]:
    return [statistics.median(record.samples.step_seconds) for record in records if record.samples.step_seconds]


def _row(cell: str, records: Sequence[Record], value: float | None, made: golden.Golden) -> tuple[str, ...]:
    times, figures = _times(records), made.cells[cell].figures
    exact = sum(not isinstance(figure, tuple) for figure in figures.values())
    return (
        cell,
        title(records[0].cell),
        str(len(records)),
        amount(statistics.median(times), "s") if times else "-",
        "-" if value is None else f"{value:.2%}",
        "-" if value is None else f"{max(LEAST_CHANGE, 2 * value):.1%}",
        f"{exact} of {len(figures)}",
    )
