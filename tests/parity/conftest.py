"""Runs real cells in processes of their own, as `hpbench run` does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cell import Cell
from benchmarks.compose import illegal, processes
from benchmarks.site import Site
from harness.execute import run_cell
from harness.launch.local import Launcher
from harness.record import Record
from harness.references import References

SITE = Site(kind="cpu", count=2)


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
