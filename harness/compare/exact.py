"""What does not vary from run to run where nothing changed: memory, losses, gradient norms and counts of collectives.

One part in a million is as much of a finding as half, in either direction, so a single run can tell. Losses and norms are
those of verification, which trains a fixed number of steps; the loss of the timed engine is named by the number of steps
after which it was read, as warm-up ends when the step time is steady, and only losses after as many steps compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from harness.record import Record
from harness.report.words import amount

IDENTICAL = 3
"""Runs that must be bit-identical before a figure is taken for exact."""
MEMORY, LOSS, NORM, TRAINED = "peak_memory_bytes", "loss", "gradient_norm", "loss_after"
COLLECTIVES = "collectives."


class Value(NamedTuple):
    """One exact figure."""

    number: float
    unit: str


Values = dict[str, Value]
"""Metric -> figure, of one run of a cell."""


def exact_values(record: Record) -> Values:
    """The exact figures of a record. Collectives are counted by axis and operation."""
    found: Values = {}
    if MEMORY in record.metrics:
        found[MEMORY] = Value(record.metrics[MEMORY].value, "bytes")
    if record.verification:
        norms = [norm for norm in record.verification.gradient_norms if norm is not None]
        if record.verification.losses:
            found[LOSS] = Value(record.verification.losses[-1], "nats")
        if norms:
            found[NORM] = Value(norms[-1], "")
    if "final_loss" in record.metrics:
        steps = len(record.samples.warmup_seconds) + len(record.samples.step_seconds)
        found[f"{TRAINED}_{steps}_steps"] = Value(record.metrics["final_loss"].value, "nats")
    if record.observed:
        for axis, operations in record.observed.collectives.items():
            found |= {f"{COLLECTIVES}{axis}.{name}": Value(what["count"], "calls") for name, what in operations.items()}
    return found


def aligned(runs: Sequence[Values]) -> list[Values]:
    """The same runs, so that what is absent was not measured: a collective that was not called was called 0 times, and losses
    after other numbers of steps than the others' are left out."""
    names = dict.fromkeys(name for run in runs for name in run)
    for name in list(names):
        if name.startswith(TRAINED) and not all(name in run for run in runs):
            del names[name]
    zero = Value(0, "calls")
    return [{name: run.get(name, zero) for name in names if name in run or name.startswith(COLLECTIVES)} for run in runs]


def of_training(metric: str) -> bool:
    """Whether a figure is one of what was computed, which other versions of a framework may round otherwise."""
    return metric in (LOSS, NORM) or metric.startswith(TRAINED)


def bounds(runs: Iterable[Values], metric: str) -> tuple[Value, Value]:
    """The least and the largest that runs gave, the same where they are bit-identical."""
    values = [run[metric] for run in runs]
    return min(values), max(values)


def written(value: Value) -> str:
    """Exactly, as a rounded figure may hide the difference that is the finding."""
    number, unit = value
    exactly = repr(int(number)) if float(number).is_integer() else repr(number)
    rounded = f" ({amount(number, unit)})" if unit == "bytes" and number >= 1024 else ""
    return f"{exactly} {unit}".rstrip() + rounded


def held(low: Value, high: Value) -> str:
    """What a figure is held to, in words."""
    return written(low) if low == high else f"{written(low)} to {written(high)} in its own runs"


def against(low: Value, high: Value, least: Value, most: Value) -> tuple[Literal["regressed", "improved", "stable"], Value]:
    """The verdict on figures between `least` and `most`, held to those between `low` and `high`, and the one farthest off.

    Where the latter differ, the figure is no exact one: as much again is allowed on either side, as a few runs of the
    same distribution reach beyond the range of a few others half of the time.
    """
    room = high.number - low.number
    if most.number > high.number + room:
        return "regressed", most
    return ("improved", least) if least.number < low.number - room else ("stable", least)
