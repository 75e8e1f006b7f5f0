"""1F1B: after a warm-up each stage alternates one forward with one backward (Narayanan et al., PipeDream, 2019, in its
synchronous form), by torch.distributed.pipelining.

The bubble is GPipe's, (N - 1) / (m + N - 1) with N stages and m microbatches, but stage i holds the activations of at most
N - i microbatches instead of all m.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.pipeline_parallel._torch_schedule import OneForwardOneBackward


@dataclass(frozen=True)
class Strategy(OneForwardOneBackward):
    """No knobs."""
