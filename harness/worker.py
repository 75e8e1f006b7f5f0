"""What a rank of a cell runs: the only place where a measurement meets an implementation.

    build -> verify                     one launch
    build -> probe -> warmup -> measure another, in new processes

Tests reach into a cell by *instruments*: functions named in the job as `module:function` and called with the engine, the
world and the cell right after the engine is built. They inject faults; no suite names any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.compose import changed_dtypes, compose, knobs, repeats
from benchmarks.reference import VERIFICATION_LOSS_SCALE, sgd
from benchmarks.world import World
from harness import verify as verification
from harness.launch.entry import Seat, resolve
from harness.measure import measure
from harness.settings import limit_memory, pin


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the ranks of one launch are told."""

    task: str
    """`verify` or `measure`."""
    cell: dict[str, Any]
    """As JSON; for `verify` with the model as verified."""
    device: str
    """`cpu` or `cuda`."""
    threads: int
    """Of each process for operations on the CPU."""
    reference: dict[str, Any] | None = None
    """What `harness.verify.reference` returned; `verify` needs it."""
    memory_bytes: int = 0
    """What each process may ask for on the CPU. 0: no limit."""
    instruments: list[str] = field(default_factory=list)


def run(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """One rank of a job.

    Args:
        payload: a `Job` as JSON.

    Returns:
        What `harness.verify.verify` or `harness.measure.measure` found, and `device_name`; of a measurement also `knobs`,
        `flops` and, where copies are compared, `digests`.
    """
    job = Job(**payload)
    cell = Cell.model_validate(job.cell)
    seat.report("build")
    limit_memory(job.memory_bytes)
    pin(threads=job.threads, seed=cell.seed)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind=job.device)
    work = {"verify": _verify, "measure": _measure}[job.task]
    found = work(job, cell, world, seat)
    world.close()
    name = torch.cuda.get_device_name(world.device) if job.device == "cuda" else "cpu"
    return {**found, "device_name": name}


def _verify(job: Job, cell: Cell, world: World, seat: Seat) -> dict[str, Any]:
    assert job.reference is not None
    factor = job.reference["loss_factor"]
    engine = compose(
        cell,
        world,
        optimizer=sgd(job.reference["learning_rate"]),
        loss_factor=factor,
        loss_scale=VERIFICATION_LOSS_SCALE / factor,
    )
    for name in job.instruments:
        resolve(name)(engine, world, cell)
    seat.report("verify")
    found = verification.verify(engine, cell, world, job.reference)
    engine.close()
    return found


def _measure(job: Job, cell: Cell, world: World, seat: Seat) -> dict[str, Any]:
    engine = compose(cell, world)
    for name in job.instruments:
        resolve(name)(engine, world, cell)
    found = measure(engine, cell, world, seat.report)
    found["caveats"] = [*engine.caveats, *found["caveats"]]
    found["knobs"] = knobs(cell)
    found["changed_dtypes"] = changed_dtypes(cell)
    found["repeats"] = repeats(cell)
    found["flops"] = _flops(cell)
    found["digests"] = verification.digests(engine)
    engine.close()
    return found


def _flops(cell: Cell) -> dict[str, int]:
    model, rows, sequence = models.load(cell.model), cell.batch.global_size, cell.batch.sequence
    return {
        "model": model.training_flops(rows, sequence, causal=True),
        "model_full_attention": model.training_flops(rows, sequence, causal=False),
    }
