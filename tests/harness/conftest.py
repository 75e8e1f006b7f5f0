"""What tests of the harness share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cell import Cell
from benchmarks.layout import Layout
from harness.launch.local import Launcher

QUICK = {"warmup_steps": 2, "measure_steps": 3, "measure_seconds": 0}
"""A protocol for cells whose figures nobody reads."""


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """One launcher for all tests; its server is started once."""
    with Launcher() as started:
        yield started


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder for the logs of ranks."""
    return tmp_path / "logs"


def quick_cell(layout: str, **fields: Any) -> Cell:
    """A cell that is measured in about a second; processes are one for each device."""
    devices = Layout.parse(layout).devices
    given = {"layout": layout, "processes": devices, "devices": devices, "protocol": QUICK, **fields}
    return Cell.model_validate(given)
