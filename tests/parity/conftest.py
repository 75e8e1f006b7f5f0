"""Runs real cells in processes of their own, as `hpbench run` does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cell import Cell
from benchmarks.compose import illegal, processes
from benchmarks.registry import AXES, names
from benchmarks.site import Site
from harness.execute import run_cell
from harness.launch.local import Launcher
from harness.record import Record
from harness.references import References

SITE = Site(kind="cpu", count=2)
SLOW = ("traced-1f1b",)
"""Implementations that take many seconds to build."""


def each(axis: str, layout: str = "{axis}=2:{name}") -> list[object]:
    """A layout of every implementation of an axis, as parameters of a test; marked where it is slow."""
    return [
        pytest.param(layout.format(axis=axis, name=name), marks=[pytest.mark.slow] if name in SLOW else [])
        for name in names(AXES[axis])
    ]


def cell(layout: str, **fields: object) -> Cell:
    """A cell with the processes and devices of its layout."""
    made = Cell.model_validate({"layout": layout, **fields})
    return made.model_copy(update={"processes": processes(made.layout), "devices": made.layout.devices})


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
