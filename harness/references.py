"""The single-device references of a run, each trained once. Imports no torch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness.launch.entry import Place
from harness.launch.local import ChildError, Launcher
from harness.launch.outcome import Failure


class References:
    """Trains references in child processes and remembers what they gave, failures too.

    Args:
        folder: where parameters are kept as long as the run lasts, four bytes for each; best a temporary one.
    """

    def __init__(self, launcher: Launcher, folder: Path, site: Site):
        self._launcher, self._folder, self._site = launcher, folder, site
        self._known: dict[tuple[Any, ...], dict[str, Any] | Failure] = {}
        self._lock = threading.Lock()  # of cells that run at once, one trains at a time

    def get(self, cell: Cell, threads: int, place: Place | None = None) -> dict[str, Any] | Failure:
        """What `harness.verify.reference` gives for a cell, or why it gave nothing.

        Args:
            place: where it is trained, if it must be.
        """
        batch, protocol = cell.batch, cell.protocol
        depth = cell.layout.degree("pp")  # a model that is verified shallow has a block for each stage
        key = (cell.model, cell.precision, cell.clip, batch.global_size, batch.sequence, cell.seed, cell.data, cell.optimizer)
        key += (protocol.verify_steps, protocol.reference_bytes, depth)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._train(cell, threads, place)
            return self._known[key]

    def _train(self, cell: Cell, threads: int, place: Place | None) -> dict[str, Any] | Failure:
        given = cell.protocol.reference_bytes
        payload = {
            "cell": cell.model_dump(mode="json", by_alias=True),
            "device_bytes": self._site.usable_bytes if given is None else given,
            "memory_bytes": self._site.device_memory_bytes,
            "device": self._site.kind,
            "threads": threads,
            "folder": str(self._folder),
        }
        try:
            return self._launcher.call("harness.verify:reference", payload, limit=cell.protocol.verify_limit, place=place)
        except ChildError as error:
            return error.failure
