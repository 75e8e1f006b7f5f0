"""Observes, warms up and times one engine, on each rank. Knows the engine by its protocol alone.

Four parts that never mix: extra steps under observation, warm-up until the step time is steady, timed steps in which
nothing happens but training, and the probes' readings, which come from the extra steps.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import models
from benchmarks.cell import Cell, Protocol
from benchmarks.contract import Engine, Model, StepResult
from benchmarks.reference import OPTIMIZER_STEPS
from benchmarks.world import World
from harness.batches import Batches
from harness.observe import Observer
from harness.probes import MOST, SETTLED, probes
from harness.statistics import median, movement, steady

MOST_BATCHES = 512
MOST_BATCH_BYTES = 2**29
"""So many batches, or bytes of them, are made ahead of the timed steps; more steps train on them again."""
LEDGER_TOLERANCE = 0.02
"""By which a rank's steps may differ from its own wall time."""


def measure(engine: Engine, cell: Cell, world: World, report: Callable[[str], None]) -> dict[str, Any]:
    """Everything this rank has to say of a cell's speed and memory.

    Args:
        report: told the name of each phase as it begins.

    Returns:
        `finding`: what was observed; `readings`: probe -> reading; `warmup_seconds`: largest of the ranks;
        `step_seconds`: this rank's; `wall_seconds`; `final_loss`, `first_losses` and `loss_after_samples`: None where this
        rank has none;
        `skipped`: how many timed steps loss scaling left out; `caveats`.
    """
    batches = Batches(cell, models.load(cell.model), world)
    losses = _Losses()
    report("probe")
    readings, finding = _observe(engine, cell, world, batches, losses)
    report("warmup")
    warmup, caveats = _warm_up(engine, cell.protocol, world, batches, losses)
    report("measure")
    timed = _time(engine, world, batches, _steps(cell.protocol, warmup), losses)
    ledger = sum(timed.step_seconds) / timed.own_seconds - 1
    if abs(ledger) > LEDGER_TOLERANCE:
        caveats.append(f"unstable: the steps of rank {world.rank} differ from its wall time by {ledger:+.1%}")
    return {
        "finding": finding,
        "readings": readings,
        "warmup_seconds": warmup,
        "step_seconds": timed.step_seconds,
        "wall_seconds": timed.wall_seconds,
        "final_loss": timed.final_loss,
        "first_losses": losses.first(),
        "loss_after_samples": _loss_after(engine, cell, batches, losses),
        "skipped": timed.skipped,
        "caveats": caveats,
        "data": batches.describe(),
    }


class _Losses:
    """Those of all of the engine's steps in order, which stay on the device until they are asked for."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor | None] = []

    def __len__(self) -> int:
        return len(self._losses)

    def note(self, result: StepResult) -> StepResult:
        """Keep the loss of a step. Returns the result."""
        self._losses.append(result.loss)
        return result

    def first(self) -> list[float | None]:
        """Of the first steps, to hold against a reference; None where this rank has no loss."""
        return [None if loss is None else float(loss) for loss in self._losses[:OPTIMIZER_STEPS]]

    def mean(self, begin: int, end: int) -> float | None:
        """Over these steps; None where this rank has no loss."""
        chosen = self._losses[begin:end]
        return None if chosen[0] is None else torch.stack(chosen).mean().item()


def _loss_after(engine: Engine, cell: Cell, batches: Batches, losses: _Losses) -> float | None:
    """The mean loss over the last eighth of the protocol's `loss_samples`; None where it has none, or this rank no loss."""
    if not cell.protocol.loss_samples:
        return None
    steps = math.ceil(cell.protocol.loss_samples / cell.batch.global_size)
    while len(losses) < steps:
        losses.note(engine.step(batches.take()))
    return losses.mean(steps - math.ceil(steps / 8), steps)


def _observe(
    engine: Engine, cell: Cell, world: World, batches: Batches, losses: _Losses
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Extra steps: the probes' own, then one under the observer."""

    def step() -> bool:
        return not losses.note(engine.step(batches.take())).skipped

    readings: dict[str, Any] = {}
    if cell.protocol.probe:
        for name, probe in probes().items():
            if hasattr(probe, "watch"):
                readings[name] = probe.watch(step, engine, world, cell)
    if not readings:
        # What is made once, such as optimizer state, must not be taken for what every step does.
        for _ in range(SETTLED):
            step()
    for _ in range(MOST):
        observer = Observer(engine, world)
        with observer:
            applied = step()
        if applied:  # a step that loss scaling skips updates nothing
            break
    finding = observer.finding()
    finding["coordinates"] = {axis: world.coordinate(axis) for axis in world.degrees}
    finding["recomputed_flops"] = _recomputed_flops(finding, models.load(cell.model), cell)
    return readings, finding


def _recomputed_flops(finding: dict[str, Any], model: Model, cell: Cell) -> int:
    """FLOPs of the block forwards that were run again, as if blocks were whole: of tensor ranks, one may be counted."""
    rows, sequence = cell.rows_per_microbatch(), cell.batch.sequence
    return sum(
        (calls - part["forwards"]) * model.forward_flops(block, rows, sequence, causal=True)
        for part in finding["parts"]
        for block, calls in part["blocks"].items()
    )


def _warm_up(
    engine: Engine, protocol: Protocol, world: World, batches: Batches, losses: _Losses
) -> tuple[list[float], list[str]]:
    """Steps until their time is steady or the bound is reached; every rank sees the largest times and decides alike.

    Returns: seconds by step, and caveats.
    """
    seconds: list[float] = []
    while len(seconds) < protocol.warmup_steps:
        batch = batches.take()
        world.synchronize()
        begun = time.perf_counter()
        losses.note(engine.step(batch))
        world.synchronize()
        seconds.append(_largest(time.perf_counter() - begun, world))
        if steady(seconds):
            return seconds, []
    if len(seconds) < 10:
        return seconds, [f"unstable: {len(seconds)} warm-up steps are too few to see whether the step time is steady"]
    return seconds, [f"unstable: the step time still moved by {movement(seconds):.1%} after {len(seconds)} warm-up steps"]


def _steps(protocol: Protocol, warmup: list[float]) -> int:
    """How many steps to time."""
    return max(protocol.measure_steps, math.ceil(protocol.measure_seconds / median(warmup[-5:])))


@dataclass(frozen=True, kw_only=True)
class _Timed:
    step_seconds: list[float]
    wall_seconds: float
    """Between the two barriers."""
    own_seconds: float
    """Until this rank's own devices were done."""
    final_loss: float | None
    skipped: int
    """Steps that loss scaling left out."""


def _time(engine: Engine, world: World, batches: Batches, count: int, losses: _Losses) -> _Timed:
    """Train `count` steps and look at nothing but the clock; devices are synchronised at both ends alone."""
    ready = [batches.take()]
    most = min(count, MOST_BATCHES, MOST_BATCH_BYTES // sum(tensor.nbytes for tensor in ready[0]))
    ready += [batches.take() for _ in range(most - 1)]
    clock = _clock(world, count)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would be charged to whichever step it falls into
    world.synchronize()
    dist.barrier()
    begun = time.perf_counter()
    clock.mark()
    skipped = 0
    for i in range(count):
        result = losses.note(engine.step(ready[i % len(ready)]))
        skipped += result.skipped
        clock.mark()
    world.synchronize()
    own = time.perf_counter()
    dist.barrier()
    ended = time.perf_counter()
    gc.enable()
    gc.unfreeze()
    return _Timed(
        step_seconds=clock.seconds(),
        wall_seconds=ended - begun,
        own_seconds=own - begun,
        final_loss=None if result.loss is None else float(result.loss),
        skipped=skipped,
    )


class _HostClock:
    """Times steps on the CPU, where a step that has returned has ended."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]


class _DeviceClock:
    """Times steps by events in each device's stream, so that the host need not wait. Of several devices, the slowest."""

    def __init__(self, devices: tuple[torch.device, ...], steps: int):
        self._made = [[torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)] for _ in devices]
        self._devices = devices
        self._next = 0

    def mark(self) -> None:
        for device, events in zip(self._devices, self._made, strict=True):
            events[self._next].record(torch.cuda.current_stream(device))
        self._next += 1

    def seconds(self) -> list[float]:
        per_device = [[a.elapsed_time(b) / 1000 for a, b in zip(e, e[1:], strict=False)] for e in self._made]
        return [max(times) for times in zip(*per_device, strict=True)]


def _clock(world: World, steps: int) -> _HostClock | _DeviceClock:
    return _DeviceClock(world.devices, steps) if world.device.type == "cuda" else _HostClock()


def _largest(seconds: float, world: World) -> float:
    value = torch.tensor(seconds, dtype=torch.float64, device=world.device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()
