"""ZB-V: two stages on each process placed as a V, backward split, no bubble in theory (Qi et al., Zero Bubble Pipeline
Parallelism, 2024, section 6), by torch.distributed.pipelining.

The V lets the first process begin backward soon after the last stage's forward, which it runs itself, so a process holds
activations of at most 2 N of its stages, as much as 1F1B's first one, and all processes hold alike. Where forward, input
gradient and weight gradient take the same time and m >= 2 N - 1, nobody waits between the first and the last action; the
more they differ, the more bubble comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import ScheduleZBVZeroBubble

from benchmarks.pipeline_parallel._several_stages import Folded


@dataclass(frozen=True)
class Strategy(Folded):
    """No knobs: a V has two stages on each process."""

    kind = ScheduleZBVZeroBubble
