"""Activation checkpointing by `deepspeed.checkpointing`: one autograd function around a block, which keeps the block's input
and the states of random generators; its backward runs the block's forward again and a backward of its own inside (what torch
calls reentrant). Its further ways, cutting inputs over tensor ranks and sending them to the host, are not used.

It knows nothing of autocast: what is run again in backward would compute in fp32 whatever the forward computed in, silently. So
a block enters it by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint
from torch import Tensor

from benchmarks.contract import Part
from benchmarks.techniques.precision import Precision


def apply(part: Part, precision: Precision, device_type: str) -> None:
    """Recompute every block of `part` in backward."""
    for name in part.blocks:
        block = part.module.get_submodule(name)
        forward = _cast(block.forward, precision, device_type) if precision.mixed else block.forward
        block.forward = functools.partial(checkpoint, forward)


def _cast(forward: Callable[[Tensor], Tensor], precision: Precision, device_type: str) -> Callable[[Tensor], Tensor]:
    def cast(x: Tensor) -> Tensor:
        with torch.autocast(device_type, dtype=precision.compute):
            return forward(x)

    return cast
