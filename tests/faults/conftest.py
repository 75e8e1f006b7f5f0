"""What the tests of faults share: a launcher, and a look at what is left of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.cell import Cell
from benchmarks.layout import Layout
from benchmarks.site import Site
from harness.execute import run_cell
from harness.launch.local import Launcher
from harness.launch.workplace import workplace
from harness.record import Record
from harness.references import References

SITE = Site(kind="cpu", count=2, device_memory_bytes=2**30)
LIMITS = {"build_limit": 30, "verify_limit": 30}


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """One launcher for all tests; its server is started once, and survives all of them."""
    with Launcher() as started:
        yield started


@pytest.fixture(scope="session")
def references(launcher: Launcher) -> References:
    return References(launcher, launcher.folder("references"), SITE)


@pytest.fixture
def go(launcher: Launcher, references: References, tmp_path: Path) -> Callable[..., Record]:
    """Runs a cell with instruments of `tests.faults.injected`."""

    def run(cell: Cell, *faults: str) -> Record:
        return run_cell(
            cell,
            launcher=launcher,
            run_folder=tmp_path,
            run_id="faults",
            environment_id="test",
            site=SITE,
            references=references,
            instruments=[f"tests.faults.injected:{fault}" for fault in faults],
        )

    return run


def small_cell(layout: str, *, processes: int, **protocol: float) -> Cell:
    """A cell that is verified only, in about half a second."""
    given = {
        "model": "llama-tiny[blocks=2]",
        "layout": layout,
        "processes": processes,
        "devices": Layout.parse(layout).devices,
        "batch": {"global": 8, "microbatches": 2, "sequence": 16},
        "protocol": {"measure_steps": 0, **LIMITS, **protocol},
    }
    return Cell.model_validate(given)


def remains() -> dict[str, set[str]]:
    """What there is of ours: processes and the ports they listen on, temporary files."""
    found: dict[str, set[str]] = {"processes": set(), "ports": set()}
    for process in psutil.Process().children(recursive=True):
        try:
            found["processes"].add(f"{process.pid} {' '.join(process.cmdline())}")
            ports = {str(c.laddr.port) for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
            found["ports"] |= ports
        except psutil.Error:
            continue
    files = {path for path in workplace().rglob("*") if not path.is_relative_to(workplace() / "in-use")}
    found["files"] = {str(path) for path in files if "references-" not in str(path)}
    return found
