"""Runs real cells in processes of their own, as `hpbench run` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import registry
from benchmarks.cell import Cell
from benchmarks.compose import illegal, processes
from benchmarks.site import Site
from harness.execute import run_cell
from harness.launch.local import Launcher
from harness.record import Record
from harness.references import References

SITE = Site(kind="cpu", count=2)
ALL = tuple(f"benchmarks.{folder}.{name.replace('-', '_')}" for folder in registry.AXES.values() for name in registry.names(folder))


def cell(layout: str, **fields: object) -> Cell:
    """A cell with the processes and devices of its layout."""
    made = Cell.model_validate({"layout": layout, **fields})
    return made.model_copy(update={"processes": processes(made.layout), "devices": made.layout.devices})


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Record]]:
    """Verifies (and, where the protocol has timed steps, measures) a legal cell."""
    folder = tmp_path_factory.mktemp("parity")
    with Launcher(ALL) as launcher:
        references = References(launcher, Path(tmp_path_factory.mktemp("references")), SITE)

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

        yield go
