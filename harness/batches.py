"""The batches of one rank, in the one order that is the same for every layout."""

from __future__ import annotations

from benchmarks.cell import Cell
from benchmarks.contract import Batch, Model
from benchmarks.data import share
from benchmarks.world import World


class Batches:
    """Hands out a data rank's share of the global batches, one step after the other, on the rank's device."""

    def __init__(self, cell: Cell, model: Model, world: World):
        self._samples = model.samples(cell)
        self._rows, self._world = cell.batch.global_size, world
        self._next = 0

    def take(self) -> Batch:
        """The batch of the next step."""
        inputs, targets = self._samples.batch(self._next, self._rows)
        self._next += 1
        mine = share(inputs, targets, self._world.coordinate("dp"), self._world.degrees.get("dp", 1))
        return Batch(mine.inputs.to(self._world.device), mine.targets.to(self._world.device))

    def describe(self) -> dict[str, str | int]:
        """What is trained on: `source`, `sha256`, and how much there is."""
        return self._samples.describe()
