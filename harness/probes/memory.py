"""How much memory a rank needs at most, and what for."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.probes import MOST, SETTLED, Evidence
from harness.record import Metric

if TYPE_CHECKING:
    from benchmarks.cell import Cell
    from benchmarks.contract import Engine
    from benchmarks.world import World


def watch(step: Callable[[], bool], engine: Engine, world: World, cell: Cell) -> dict[str, Any]:
    """Bytes at the peak of a step by purpose; on CUDA also what the allocator says of another, unobserved step."""
    import torch

    from harness.memory_tracker import Tracker

    with Tracker(engine) as tracker:
        for number in range(1, MOST):
            tracker.mark()
            applied = step()
            if applied and number >= SETTLED:
                break
    reading: dict[str, Any] = {"anatomy": tracker.peak(), "resident": _resident()}
    if world.device.type == "cuda":
        devices = set(world.devices)
        torch.cuda.empty_cache()  # what earlier, heavier steps left cached is not this one's
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        step()
        reading["allocated"] = sum(torch.cuda.max_memory_allocated(d) for d in devices)
        reading["reserved"] = sum(torch.cuda.max_memory_reserved(d) for d in devices)
    return reading


def metrics(evidence: Evidence) -> dict[str, Metric]:
    """`peak_memory_bytes` and its anatomy, each of the largest rank, and what the system or the allocator holds."""
    readings = evidence.readings.get("memory")
    if not readings:
        return {}
    anatomies = [_complete(reading) for reading in readings]
    found = {"peak_memory_bytes": _largest([a["total"] for a in anatomies])}
    for purpose in ("parameters", "gradients", "optimizer_state", "activations", "other"):
        found[f"memory_{purpose}_bytes"] = _largest([a[purpose] for a in anatomies])
    if "reserved" in readings[0]:
        found["peak_reserved_bytes"] = _largest([r["reserved"] for r in readings])
    else:
        found["peak_resident_bytes"] = _largest([r["resident"] for r in readings])
    return found


def _complete(reading: dict[str, Any]) -> dict[str, int]:
    """The anatomy; what the allocator gave beyond the tracked tensors (workspaces, rounding) is `other`."""
    anatomy = dict(reading["anatomy"])
    if "allocated" in reading:
        anatomy["other"] = max(0, anatomy["other"] + reading["allocated"] - anatomy["total"])
        anatomy["total"] = reading["allocated"]
    return anatomy


def _largest(per_rank: list[int]) -> Metric:
    return Metric(value=max(per_rank), unit="bytes", per_rank=[float(value) for value in per_rank])


def _resident() -> int:
    """The most this process ever had in physical memory, shared libraries included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
