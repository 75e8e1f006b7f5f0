"""What yields metrics, one file each: found by being in this folder.

A probe is a module with two functions, of which the first may be left out. The second imports no torch.

    watch(step, engine, world, cell) -> dict   on each rank, in extra steps before warm-up: its reading, plain data.
                                               `step()` trains once and returns whether the update was applied
    metrics(evidence) -> {name: Metric}        from the readings of all ranks and the timed steps
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.cell import Cell
from harness.record import Observed

SETTLED = 3
"""Steps after which everything that lasts is there: optimizer state, and the buckets that DDP makes anew in the second."""
MOST = 25
"""Steps after which loss scaling has found its scale, or never will."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a measured cell left, for the probes to make figures of."""

    cell: Cell
    observed: Observed
    step_seconds: Sequence[Sequence[float]]
    """Rank -> timed step -> seconds."""
    wall_seconds: Sequence[float]
    """Rank -> seconds between the two barriers around all timed steps."""
    final_loss: float
    """Mean over the batch of the last timed step, in nats."""
    loss_after_samples: float | None
    """Over the last eighth of the protocol's `loss_samples`, in nats; None where it asks for none."""
    flops: dict[str, int]
    """Of one step, over all devices: `model` (causal attention counted causally), `model_full_attention`, `recomputed`."""
    device_name: str
    readings: dict[str, list[dict[str, Any]]]
    """Probe -> rank -> what its `watch` returned; without the probes that did not watch."""


def probes() -> dict[str, ModuleType]:
    """Name -> module, of every file in this folder."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {f.stem: importlib.import_module(f"{__name__}.{f.stem}") for f in files}
