"""Activation checkpointing by FairScale's `checkpoint_wrapper`: one autograd function around a block, whose backward runs the
block's forward again and a backward of its own inside (what torch calls reentrant). FairScale is no longer maintained.
"""

from __future__ import annotations

import contextlib

import torch
from fairscale.nn.checkpoint import checkpoint_activations as upstream
from fairscale.nn.checkpoint import checkpoint_wrapper

from benchmarks.contract import Part
from benchmarks.techniques.precision import Precision

CAST = (
    "shim: FairScale's checkpointing runs blocks again in the precision of their forward, as it knows autocast on CUDA alone, "
    "and enters it in fp16 whatever it was (autocast in fairscale/nn/checkpoint/checkpoint_activations.py)"
)


def apply(part: Part, precision: Precision, device_type: str) -> None:
    """Wrap every block of `part`."""
    if precision.mixed and (device_type, precision.compute) != ("cuda", torch.float16):
        part.caveats += (_mend_autocast(precision, device_type),)
    for name in part.blocks:
        checkpoint_wrapper(part.module.get_submodule(name))


def _mend_autocast(precision: Precision, device_type: str) -> str:
    """Let forwards that are run again compute as they did. Returns what was changed, in one sentence, for the record."""

    def autocast(enabled: bool) -> contextlib.AbstractContextManager[None]:
        return torch.autocast(device_type, dtype=precision.compute, enabled=enabled)

    upstream.is_autocast_enabled = lambda: torch.is_autocast_enabled(device_type)
    upstream.autocast = autocast
    return CAST
