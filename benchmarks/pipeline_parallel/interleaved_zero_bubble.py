"""Interleaved zero bubble: interleaved 1F1B whose backward is split, weight gradients fill the bubble (Qi et al., Zero Bubble
Pipeline Parallelism, 2024, their ZB-H1), by torch.distributed.pipelining.

Let a forward, an input gradient and a weight gradient of a process's whole share take F, I and W. 1F1B's bubble of
(N - 1) (F + I + W) becomes (N - 1) (F + I - W) with one stage on each of N processes, a third of it where the three are
equal, and 1/v of that with v stages on each. As a weight gradient waits, activations are kept longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import ScheduleInterleavedZeroBubble

from benchmarks.pipeline_parallel._several_stages import Looped


@dataclass(frozen=True)
class Strategy(Looped):
    """Stages go round the processes."""

    kind = ScheduleInterleavedZeroBubble
