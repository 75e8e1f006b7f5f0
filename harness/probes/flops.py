"""Arithmetic done per second, by one ruler for all cells, and as a share of what the device could do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness.probes import Evidence
from harness.record import Metric

if TYPE_CHECKING:
    from benchmarks.cell import Cell
    from benchmarks.contract import Engine
    from benchmarks.world import World

MATMUL_SIZE = {"cpu": 512, "cuda": 8192}
MATMUL_TIMES = 5
HARDWARE = Path(__file__).parents[2] / "configs" / "hardware"


def watch(step: Callable[[], bool], engine: Engine, world: World, cell: Cell) -> dict[str, Any]:
    """What one square matrix product reaches on this rank's device in the compute dtype, while all ranks do the same:
    a ceiling that is measured, beside the one from a table. The best of a few."""
    import torch

    from benchmarks.techniques.precision import PRECISIONS

    size, device = MATMUL_SIZE[world.device.type], world.device
    a, b = torch.randn(2, size, size, device=device).to(PRECISIONS[cell.precision].compute)
    best = float("inf")
    for _ in range(MATMUL_TIMES):
        world.synchronize()
        begun = time.perf_counter()
        torch.mm(a, b)
        world.synchronize()
        best = min(best, time.perf_counter() - begun)
    return {"matmul_flops_per_second": 2 * size**3 / best}


def metrics(evidence: Evidence) -> dict[str, Metric]:
    """FLOP/s over all devices: the model's, with causal attention counted causally and in full, and the hardware's, which
    adds what checkpointing was seen to repeat. `mfu`, the model's share of the table peak, for known devices alone; and
    `matmul_flops_per_second`, what a matrix product reached on one device, the slowest."""
    per_second = len(evidence.step_seconds[0]) / max(evidence.wall_seconds)
    flops = evidence.flops
    amounts = {
        "model_flops_per_second": flops["model"],
        "model_flops_per_second_full_attention": flops["model_full_attention"],
        "hardware_flops_per_second": flops["model"] + flops["recomputed"],
    }
    found = {name: Metric(value=amount * per_second, unit="FLOP/s") for name, amount in amounts.items()}
    reached = [reading["matmul_flops_per_second"] for reading in evidence.readings.get("flops", ())]
    if reached:
        found["matmul_flops_per_second"] = Metric(value=min(reached), unit="FLOP/s", per_rank=reached)
    peak = peak_flops(evidence.device_name, evidence.observed.dtypes.get("compute", ""))
    if peak is not None:
        value = found["model_flops_per_second"].value / (peak * evidence.cell.devices)
        found["mfu"] = Metric(value=value, unit="fraction")
    return found


def peak_flops(device: str, dtype: str) -> float | None:
    """The table peak of one device in FLOP/s; None for a device or dtype that is in no table.

    Args:
        device: as its driver calls it.
    """
    known = next((entry for entry in _hardware() if re.fullmatch(entry["match"], device)), None)
    return known["flops_per_second"].get(dtype) if known else None


@cache
def _hardware() -> list[dict[str, Any]]:
    return [entry for file in sorted(HARDWARE.glob("*.yaml")) for entry in yaml.safe_load(file.read_text())]
