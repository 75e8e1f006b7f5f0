"""Runs real cells in processes of their own, as `hpbench run` does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cell import Cell
from benchmarks.compose import illegal, processes
from benchmarks.registry import AXES, load, names
from benchmarks.site import Site
from harness.execute import run_cell
from harness.launch.local import Launcher
from harness.record import Record
from harness.references import References

SITE = Site(kind="cpu", count=2)
SLOW = ("traced-1f1b",)
"""Implementations that take many seconds to build."""


def cell(layout: str, **fields: object) -> Cell:
    """A cell with the processes and devices of its layout."""
    made = Cell.model_validate({"layout": layout, **fields})
    return made.model_copy(update={"processes": processes(made.layout), "devices": made.layout.devices})


def part_of_layout(axis: str, name: str) -> str:
    """One axis of a layout with two parts; of a nested one the inner degree is two."""
    nested = load(AXES[axis], name).Strategy.nested
    return f"{axis}={'1x2' if nested else 2}:{name}"


def runs_here(layout: str) -> bool:
    """Whether a layout can run on a CPU at all, with a batch that any layout takes."""
    return illegal(cell(layout, batch={"global": 8, "microbatches": 4, "sequence": 32}), SITE) is None


def quick(axis: str) -> list[str]:
    """The implementations of an axis that run here and are built soon."""
    return [name for name in names(AXES[axis]) if name not in SLOW and runs_here(part_of_layout(axis, name))]


def each(axis: str) -> list[object]:
    """A layout of two parts for each implementation of an axis that runs here, as parameters of a test; marked where slow."""
    layouts = {name: part_of_layout(axis, name) for name in names(AXES[axis])}
    return [
        pytest.param(layout, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, layout in layouts.items()
        if runs_here(layout)
    ]


@pytest.fixture(scope="session")
def run(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Record]:
    """Verifies (and, where the protocol has timed steps, measures) a legal cell."""
    folder = tmp_path_factory.mktemp("parity")
    references = References(launcher, tmp_path_factory.mktemp("references"), SITE)

    def go(cell: Cell, *instruments: str) -> Record:
        assert illegal(cell, SITE) is None
        return run_cell(
            cell,
            launcher=launcher,
            run_folder=folder,
            run_id="parity",
            environment_id="test",
            site=SITE,
            references=references,
            instruments=instruments,
        )

    return go
