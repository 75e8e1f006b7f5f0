"""A pipeline in any order that a CSV file lays down, run by torch.distributed.pipelining's own runtime.

The file says which stages a process holds and what it does in which order (see `_schedule_file`); torch finds the sends and
receives. So a schedule out of a paper can be measured before anybody has written code for it.

By default ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2024): 1F1B with one stage on each of N processes, where backward
is split and weight gradients wait until they fill what were bubbles at the end. Let forward, input gradient and weight gradient
take F, I and W: the bubble falls from (N - 1) (F + I + W) to (N - 1) (F + I - W), and no process holds activations of more
microbatches than 1F1B's first one, N.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from benchmarks.cell import Cell
from benchmarks.errors import unknown
from benchmarks.pipeline_parallel._schedule_file import ScheduleFile, read
from benchmarks.pipeline_parallel._several_stages import Order, SeveralStages
from benchmarks.site import Site

SCHEDULES = Path(__file__).parents[2] / "configs" / "schedules"


@dataclass(frozen=True)
class Strategy(SeveralStages):
    """Which file."""

    kind = _PipelineScheduleRuntime

    file: str = "zb-h1"
    """The path of a `.csv` file; or a name in `configs/schedules`, where for each size there is a file
    `<name>-<processes>x<microbatches>.csv`."""

    def placement(self, cell: Cell) -> Sequence[Sequence[int]]:
        found = self._fitting(cell)
        return found.placement if found else super().placement(cell)

    def configuration(self, cell: Cell) -> Mapping[str, Any]:
        path = self._path(cell.layout.degree("pp"), cell.batch.microbatches)
        return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}  # a path says not what is in the file

    def order(self, cell: Cell) -> Order | None:
        return super().order(cell) if self._fitting(cell) else None

    def ordered(self, stages: Sequence[Any], microbatches: int, **options: Any) -> Any:
        schedule = super().ordered(stages, microbatches, **options)
        schedule._load_csv(str(self._path(stages[0].group_size, microbatches)))
        return schedule

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if self._fitting(cell) is None:
            path = self._path(cell.layout.degree("pp"), cell.batch.microbatches)
            asked = f"{cell.layout.degree('pp')} processes and {cell.batch.microbatches} microbatches"
            if path.is_file():
                found = read(path)
                return (
                    f"{path} is a schedule for {len(found.actions)} processes and {found.microbatches} microbatches and the "
                    f"cell has {asked}: give a file that fits"
                )
            sizes = ", ".join(file.stem.removeprefix(f"{self.file}-") for file in sorted(SCHEDULES.glob(f"{self.file}-*.csv")))
            return f"there is no schedule {self.file} for {asked}, only for {sizes}: write one and give the path of the file"
        return super().unsupported(cell, site, traits)

    def _fitting(self, cell: Cell) -> ScheduleFile | None:
        """The file, where it is for as many processes and microbatches as the cell has.

        Raises:
            UsageError: there is no such file at all, or it is no schedule.
        """
        path = self._path(cell.layout.degree("pp"), cell.batch.microbatches)
        if not self.file.endswith(".csv") and not path.is_file():
            names = {file.stem.rpartition("-")[0] for file in SCHEDULES.glob("*.csv")}
            if self.file not in names:
                raise unknown("schedule", self.file, names, f"(or the path of a .csv file) in '{cell.layout}'")
            return None
        found = read(path)
        fits = (len(found.actions), found.microbatches) == (cell.layout.degree("pp"), cell.batch.microbatches)
        return found if fits else None

    def _path(self, processes: int, microbatches: int) -> Path:
        if self.file.endswith(".csv"):
            return Path(self.file)
        return SCHEDULES / f"{self.file}-{processes}x{microbatches}.csv"
