"""Precision: four dtypes whose name means the same in every framework.

| name | parameters | compute | reduction | optimizer state |
|---|---|---|---|---|
| fp32 | fp32 | fp32 (TF32 off) | fp32 | fp32 |
| bf16 | fp32 | bf16 | fp32 | fp32 |
| fp16 | fp32 | fp16 | fp32 | fp32, with loss scaling |
| fp8 | fp32 | bf16, products of blocks in fp8 (`techniques.float8`) | fp32 | fp32 |

Mixed precision is autocast *inside each part's forward*. Around a whole step with accumulation it would keep 16-bit
copies of weights alive from one microbatch to the next, and fully sharded gradients come out wrong by percents.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The dtypes of one training step."""

    name: str
    parameters: torch.dtype = torch.float32
    compute: torch.dtype = torch.float32
    reduction: torch.dtype = torch.float32
    optimizer_state: torch.dtype = torch.float32
    loss_scale: float | None = None
    """What the loss is multiplied by at first, where gradients would underflow in the compute dtype."""

    @property
    def mixed(self) -> bool:
        """Whether parameters are cast for computation."""
        return self.compute != self.parameters


PRECISIONS = {
    "fp32": Precision(name="fp32"),
    "bf16": Precision(name="bf16", compute=torch.bfloat16),
    "fp16": Precision(name="fp16", compute=torch.float16, loss_scale=2.0**16),
    "fp8": Precision(name="fp8", compute=torch.bfloat16),
}


def apply_precision(module: nn.Module, precision: Precision, device_type: str) -> None:
    """Make `module`'s forward compute in the precision's dtype; its parameters keep theirs."""
    if not precision.mixed:
        return
    forward = module.forward

    @functools.wraps(forward)
    def autocast_forward(*inputs: Tensor) -> Tensor:
        with torch.autocast(device_type, dtype=precision.compute):
            return forward(*inputs)

    module.forward = autocast_forward


class LossScaler:
    """Dynamic loss scaling whose decision is one for the whole world.

    The rule is that of `torch.amp.GradScaler` (Micikevicius et al., Mixed Precision Training, 2018): on an overflow
    the step is skipped and the scale halved, after 2000 good steps it is doubled. GradScaler itself decides by
    optimizer, on each rank alone: with sharded parameters or stages the ranks then part ways, silently.

    Args:
        initial: the first scale.
        device: where the overflow flag is reduced.
        group: every rank that must decide alike; None: this process alone.
    """

    GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000

    def __init__(self, initial: float, device: torch.device, group: dist.ProcessGroup | None):
        self.value = initial
        self._device, self._group = device, group
        self._good_steps = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        return loss * self.value

    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide plain local gradients by the scale, in place. Returns whether any rank holds one that is not finite."""
        overflow = torch.zeros(1, device=self._device)
        for device, found in by_device(gradients).items():
            here = torch.zeros(1, device=device)
            # GradScaler's own kernel: looks at all gradients and unscales them in one go.
            torch._amp_foreach_non_finite_check_and_unscale_(found, here, torch.full((1,), 1.0 / self.value, device=device))
            overflow = torch.maximum(overflow, here.to(self._device))
        if self._group is not None:
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX, group=self._group)
        return bool(overflow.item())

    def adjust(self, overflow: bool) -> None:
        """Lower the scale after an overflow, raise it after a long run without one."""
        self._good_steps = 0 if overflow else self._good_steps + 1
        if overflow:
            self.value *= self.BACKOFF
        elif self._good_steps == self.INTERVAL:
            self.value, self._good_steps = self.value * self.GROWTH, 0


def by_device(tensors: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    """The tensors of each device, for kernels that work on many at once."""
    found: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor)
    return found
