"""GPipe: all forwards of all microbatches, then all backwards (Huang et al., 2019), by torch.distributed.pipelining.

With N stages and m microbatches of equal cost each device idles (N - 1) / (m + N - 1) of the step. Every stage keeps the
activations of all m microbatches until their backwards, which is what 1F1B saves.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import ScheduleGPipe

from benchmarks.pipeline_parallel._torch_schedule import TorchPipeline


@dataclass(frozen=True)
class Strategy(TorchPipeline):
    """No knobs."""

    kind = ScheduleGPipe
