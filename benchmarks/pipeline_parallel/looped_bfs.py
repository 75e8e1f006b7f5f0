"""Breadth-first pipeline: GPipe over several stages on each process (Lamy-Poirier, Breadth-First Pipeline Parallelism, 2023),
by torch.distributed.pipelining.

A process runs all microbatches through its first stage, then all through its second, and backwards in reverse. The bubble
is that of interleaved 1F1B, (N - 1) / (v m + N - 1) with N processes, v stages on each and m microbatches, and activations
of all m are kept. What it gains is that the whole of a stage's work lies together: fully sharded parameters need be gathered
only twice a step, and the gradients of a stage can be reduced while the next one runs backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import ScheduleLoopedBFS

from benchmarks.pipeline_parallel._several_stages import Looped


@dataclass(frozen=True)
class Strategy(Looped):
    """Stages go round the processes."""

    kind = ScheduleLoopedBFS
