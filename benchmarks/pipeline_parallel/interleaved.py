"""Interleaved 1F1B: several stages on each process, one forward and one backward in turns (Narayanan et al., Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021), by torch.distributed.pipelining.

With N processes, v stages on each and m microbatches a process idles (N - 1) / (v m + N - 1) of the step, where 1F1B idles
(N - 1) / (m + N - 1). It sends v times as much, and the first process holds activations of up to (v - 1) N + 2 (N - 1) + 1
stages at once, a little more than 1F1B's N whole shares (v N stages).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import ScheduleInterleaved1F1B

from benchmarks.pipeline_parallel._several_stages import Looped


@dataclass(frozen=True)
class Strategy(Looped):
    """Stages go round the processes."""

    kind = ScheduleInterleaved1F1B
