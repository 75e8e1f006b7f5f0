"""How long a step takes and how much it trains on."""

from __future__ import annotations

import numpy as np

from benchmarks import models
from harness.probes import Evidence
from harness.record import Metric
from harness.statistics import bootstrap_interval, largest_of_ranks, median


def metrics(evidence: Evidence) -> dict[str, Metric]:
    """`step_seconds`, throughput in samples and, of text, in tokens, as a whole and by device, and the last loss.

    Throughput is what was trained on over the wall time between the two barriers; its interval has the width of that of
    the mean step.
    """
    steps = largest_of_ranks(evidence.step_seconds)
    low, high = bootstrap_interval(steps)
    found = {
        "step_seconds": Metric(
            value=median(steps), unit="s", low=low, high=high, per_rank=[median(times) for times in evidence.step_seconds]
        ),
        "final_loss": Metric(value=evidence.final_loss, unit="nats"),
    }
    if evidence.loss_after_samples is not None:
        found["loss_after_samples"] = Metric(value=evidence.loss_after_samples, unit="nats")
    batch, devices = evidence.cell.batch, evidence.cell.devices
    mean = sum(steps) / len(steps)
    fastest, slowest = bootstrap_interval(steps, np.mean)
    per_second = len(steps) / max(evidence.wall_seconds)
    amounts = {"samples": batch.global_size}
    if models.reads_text(evidence.cell.model):
        amounts["tokens"] = batch.global_size * batch.sequence
    for unit, amount in amounts.items():
        for suffix, share in (("", 1), ("_per_device", devices)):
            value = amount * per_second / share
            found[f"{unit}_per_second{suffix}"] = Metric(
                value=value, unit=f"{unit}/s", low=value * mean / slowest, high=value * mean / fastest
            )
    return found
