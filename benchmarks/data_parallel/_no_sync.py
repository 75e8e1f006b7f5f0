"""What the wrappers with a `no_sync` of their own share: within it a backward only adds up gradients locally."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from benchmarks.contract import R
from benchmarks.replica import LocalReplica


class NoSyncReplica(LocalReplica):
    """Reduces with the last backward of a step only: until then whole gradients add up on every rank."""

    modules: list[Any]

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        if last:
            return run()
        with self.modules[part].no_sync():
            return run()
