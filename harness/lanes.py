"""Cells on their way: one after the other, or packed on disjoint devices. Imports no torch.

Cells run in threads, which only wait for processes, so that the main thread is free for signals and for records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness.interrupts import Interrupts
from harness.launch.entry import Place
from harness.plan import Planned
from harness.progress import Progress
from harness.record import Record


class Devices:
    """Which devices are free.

    Args:
        site: None: cells run one at a time, each on whatever is there.
    """

    def __init__(self, site: Site | None):
        self.site = site
        self._free = set(range(site.count)) if site else {0}
        self.lanes = len(self._free)
        """How many cells may run at once, at most."""

    def take(self, cell: Cell) -> Place | None:
        """Devices for a cell; None where not enough are free. A cell that needs more cores than there are gets all."""
        kind = self.site.kind if self.site else "any"
        wanted = (cell.processes if kind == "cpu" else cell.devices) if self.site else 1
        count = min(wanted, self.lanes)
        if len(self._free) < count:
            return None
        devices = tuple(sorted(self._free)[:count])
        self._free -= set(devices)
        return Place(kind=kind, devices=devices)

    def give_back(self, place: Place) -> None:
        """The cell that had them has ended."""
        self._free |= set(place.devices)


def run_all(
    todo: Sequence[Planned],
    run_cell: Callable[..., Record],
    devices: Devices,
    progress: Progress,
    interrupts: Interrupts,
    stop: Callable[[], None],
    left_out: list[Planned],
) -> Iterator[tuple[Planned, Record]]:
    """Cells with their records, as they end. See `harness.run.go`.

    Args:
        left_out: gets those that the budget has no time for.
    """
    waiting = list(todo)
    running: dict[Future[Record], tuple[Planned, Place]] = {}
    with ThreadPoolExecutor(devices.lanes) as threads:
        try:
            while waiting or running:
                while not interrupts.asked and (chosen := _next(waiting, devices)):
                    planned, place = chosen
                    if not progress.fits(planned):
                        left_out.append(planned)
                        devices.give_back(place)
                        continue
                    progress.begin(planned, waiting)
                    where = {"place": place} if devices.site else {}
                    running[threads.submit(run_cell, planned.cell, **where)] = chosen
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    planned, place = running.pop(future)
                    devices.give_back(place)
                    yield planned, future.result()
        except BaseException:
            stop()
            raise


def _next(waiting: list[Planned], devices: Devices) -> tuple[Planned, Place] | None:
    """Take the first cell that the free devices suffice for."""
    for planned in waiting:
        place = devices.take(planned.cell)
        if place is not None:
            waiting.remove(planned)
            return planned, place
    return None
