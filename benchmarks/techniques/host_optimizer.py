"""Optimizer offload: the optimizer's state, and the update itself, are the host's (Ren et al., ZeRO-Offload, 2021).

AdamW keeps two numbers for each parameter, which a device holds through forward and backward and needs for a moment only.
Here the host keeps them, beside a master copy of the parameters: gradients travel to the host once a step, it updates its
copy, and that travels back. With N data ranks that hold shards each host process updates its shard alone.

Copies and update run after backward, one after the other; ZeRO-Offload's overlap of both with backward is not done here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from benchmarks.contract import OptimizerRecipe

HOST = torch.device("cpu")


class HostOptimizer:
    """An optimizer of host copies of parameters: to those who hold the parameters, an optimizer like any other.

    Args:
        recipe: of the optimizer on the host.
        parameters: on any device, whole or cut; their elements on this rank are what is copied.
    """

    def __init__(self, recipe: OptimizerRecipe, parameters: Iterable[nn.Parameter]):
        self._parameters = list(parameters)
        self._masters = [nn.Parameter(_on_host(p.detach())) for p in self._parameters]
        self._inner = recipe.kind([{"params": self._masters}], **recipe.settings)
        self.param_groups = self._inner.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Gradients to the host, update there, parameters back."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            gradient = _local(parameter.grad)
            if master.grad is None:
                master.grad = _on_host(gradient)
            else:
                master.grad.copy_(gradient)
        self._inner.step()
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            _local(parameter).copy_(master)

    def zero_grad(self) -> None:
        """Free the gradients on the device."""
        for parameter in self._parameters:
            parameter.grad = None


@dataclass(frozen=True, kw_only=True)
class HostRecipe(OptimizerRecipe):
    """Builds optimizers whose state is the host's."""

    def build(self, parameters: Iterable[nn.Parameter]) -> HostOptimizer:  # type: ignore[override]
        return HostOptimizer(self, parameters)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _on_host(tensor: Tensor) -> Tensor:
    """A copy of this rank's elements in host memory, pinned where they come from a GPU, so that the bus can read it itself."""
    here = _local(tensor)
    return torch.empty_like(here, device=HOST, pin_memory=here.is_cuda).copy_(here)
