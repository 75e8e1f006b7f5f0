"""The batches of one rank, in the one order that is the same for every layout."""

from __future__ import annotations

from benchmarks.cell import Cell
from benchmarks.contract import Batch, Model
from benchmarks.data import Text, share
from benchmarks.world import World


class Batches:
    """Hands out a data rank's share of the global batches, one step after the other, on the rank's device."""

    def __init__(self, cell: Cell, model: Model, world: World):
        self._text = Text(cell.data, cell.seed)
        self._batch, self._world = cell.batch, world
        self._vocabulary = model.boundary(model.units[-1], 1, 1)[-1]
        self._next = 0

    def take(self) -> Batch:
        """The batch of the next step."""
        rows, sequence = self._batch.global_size, self._batch.sequence
        inputs, targets = self._text.batch(self._next, rows, sequence, self._vocabulary)
        self._next += 1
        mine = share(inputs, targets, self._world.coordinate("dp"), self._world.degrees.get("dp", 1))
        return Batch(mine.inputs.to(self._world.device), mine.targets.to(self._world.device))

    def describe(self) -> dict[str, str | int]:
        """Where the text comes from: `source`, `sha256`, `bytes`."""
        return self._text.describe()
