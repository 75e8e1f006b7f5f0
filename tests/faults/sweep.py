"""A run in whose every third cell a rank fails, to be killed and resumed:

python -m tests.faults.sweep FOLDER COUNT
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from benchmarks.cell import Cell
from harness import run, store
from harness.execute import run_cell
from harness.launch.local import Launcher
from harness.plan import Planned
from harness.record import Record
from harness.references import References
from tests.faults.conftest import SITE, small_cell

LAYOUTS = {"dp=2:ddp": 2, "single": 1, "tp=2:hand": 2}
FAULTS = {"raises": "crashed", "killed": "crashed", "oom_in_backward": "oom", "exits": "crashed", "segfault": "crashed"}
"""Fault -> the status it ends with."""


def cells(count: int) -> list[Cell]:
    """Cells that differ in how many warm-up steps they would make, and so share their reference."""
    layouts = list(LAYOUTS.items())
    return [
        small_cell(layout, processes=processes, warmup_steps=number + 1)
        for number in range(count)
        for layout, processes in [layouts[number % len(layouts)]]
    ]


def fault(cell: Cell) -> str | None:
    """The fault of a cell; None: it has none."""
    number = cell.protocol.warmup_steps - 1
    return None if number % 3 else list(FAULTS)[number // 3 % len(FAULTS)]


def main(folder: Path, count: int) -> int:
    """Begin the run, or go on with it."""
    with Launcher() as launcher:
        if not (folder / store.RUN).exists():
            planned = [Planned(cell=cell, reason=None, seconds=1.0) for cell in cells(count)]
            environment = {"id": "test", "site": SITE.model_dump(mode="json")}
            run.prepare(planned, folder, about={"suite": "sweep", "arguments": []}, environment=environment, seed=0)
        context = {"launcher": launcher, "run_folder": folder, "run_id": folder.name, "environment_id": "test", "site": SITE}
        whole = functools.partial(run_cell, references=References(launcher, launcher.folder("references"), SITE), **context)

        def with_fault(cell: Cell) -> Record:
            named = fault(cell)
            return whole(cell, instruments=[f"tests.faults.injected:{named}"] if named else [])

        return 0 if run.go(folder, with_fault, stop=launcher.stop) else run.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
