"""The largest microbatch that fits (`batch: max`), found by bisection on real failures. Imports no torch.

Sizes are doubled until one runs out of memory, then the gap is halved until nothing is left of it. Any other failure ends
the search, as it says nothing of memory.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cell import Cell
from harness.record import Trial

MOST_ROWS = 2**16
"""A search that meets no failure ends here."""


class Bisection:
    """A search on its way.

    Args:
        attempt: tries a number of rows for each microbatch.
    """

    def __init__(self, attempt: Callable[[int], Trial]):
        self.trials: list[Trial] = []
        self._attempt = attempt
        self._fits, self._too_large = 0, MOST_ROWS + 1

    def largest(self) -> int | None:
        """The largest size that fits, 0 where not even one row does; None where a trial failed otherwise."""
        while self._too_large - self._fits > 1:
            middle = (self._fits + self._too_large) // 2
            rows = middle if self._failed_once else min(max(1, 2 * self._fits), MOST_ROWS)
            trial = self._attempt(rows)
            self.trials.append(trial)
            if trial.status == "ok":
                self._fits = rows
            elif trial.status == "oom":
                self._too_large = rows
            else:
                return None
        return self._fits

    def reject(self, trial: Trial) -> None:
        """The size that was found ran out of memory after all, as what is measured needs more than a trial does."""
        self.trials.append(trial)
        self._too_large = trial.rows
        self._fits = max((t.rows for t in self.trials if t.status == "ok" and t.rows < trial.rows), default=0)

    @property
    def _failed_once(self) -> bool:
        return self._too_large <= MOST_ROWS


def sized(cell: Cell, rows: int) -> Cell:
    """The cell with so many rows in each microbatch of each data rank, as one that was asked for by itself."""
    global_size = rows * cell.batch.microbatches * cell.layout.degree("dp")
    protocol = cell.protocol.model_copy(update={"search": False})
    return cell.model_copy(update={"batch": cell.batch.model_copy(update={"global_size": global_size}), "protocol": protocol})


def short(cell: Cell) -> Cell:
    """The cell with as few steps as show whether it fits."""
    few = {"warmup_steps": 2, "measure_steps": 1, "measure_seconds": 0.0}
    return cell.model_copy(update={"protocol": cell.protocol.model_copy(update=few)})
