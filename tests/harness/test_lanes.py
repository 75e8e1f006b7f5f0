"""Cells side by side: on devices of their own, as many as fit, and each ends with its record."""

from __future__ import annotations

import threading
from pathlib import Path

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness import run, store
from harness.lanes import Devices
from harness.launch.entry import Place
from harness.plan import Planned
from harness.record import Record
from tests.harness.test_run import prepared, record


def cell(number: int, processes: int) -> Cell:
    layout = f"dp={processes}" if processes > 1 else "single"
    return Cell.model_validate({"layout": layout, "devices": processes, "processes": processes, "seed": number})


def test_devices_are_disjoint_and_given_back() -> None:
    devices = Devices(Site(kind="cuda", count=4))
    one, two = devices.take(cell(0, 1)), devices.take(cell(0, 2))
    assert (one, two) == (Place(kind="cuda", devices=(0,)), Place(kind="cuda", devices=(1, 2)))
    assert devices.take(cell(0, 2)) is None
    devices.give_back(one)
    assert devices.take(cell(0, 2)).devices == (0, 3)


def test_a_cell_with_more_processes_than_cores_gets_all_of_them() -> None:
    devices = Devices(Site(kind="cpu", count=2))
    assert devices.take(cell(0, 4)).devices == (0, 1)
    assert devices.take(cell(0, 1)) is None


def test_small_cells_run_at_once_and_large_ones_alone(tmp_path: Path) -> None:
    sizes = [1, 1, 2, 1, 1, 4, 1]
    cells = [Planned(cell=cell(number, size), reason=None, seconds=1.0) for number, size in enumerate(sizes)]
    folder = prepared(tmp_path, cells)
    lock, taken, most = threading.Lock(), set[int](), [0]
    both = threading.Barrier(2, timeout=30)

    def held(one: Cell, place: Place) -> Record:
        with lock:
            assert not taken & set(place.devices)
            taken.update(place.devices)
            most[0] = max(most[0], len(taken))
        if one.seed in (0, 1):  # these two meet only if they run at once
            both.wait()
        with lock:
            taken.difference_update(place.devices)
        return record(one)

    assert run.go(folder, held, side_by_side=Site(kind="cpu", count=2))
    assert sorted(r.cell.seed for r in store.read(folder).records) == list(range(7))
    assert most[0] == 2
