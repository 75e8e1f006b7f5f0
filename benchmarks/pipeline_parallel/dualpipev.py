"""DualPipeV: the V of ZB-V, with the forward of one stage paired with the backward of the other (DeepSeek-AI, DeepSeek-V3
Technical Report, 2024, and its DualPipe repository), by torch.distributed.pipelining.

The pairs are there so that one half can compute while the other half communicates inside its layers, as experts do; torch
runs the halves one after the other, so here the gain is the V alone. Only at both ends of the step is backward split to fill
the bubble, which with N processes is (N - 1) (P + B - 3 W) in units of one stage's pair P, whole backward B and weight
gradient W. It needs at least as many microbatches as stages, 2 N.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.pipelining import ScheduleDualPipeV

from benchmarks.pipeline_parallel._several_stages import Folded


@dataclass(frozen=True)
class Strategy(Folded):
    """No knobs: a V has two stages on each process."""

    kind = ScheduleDualPipeV
