"""Activation offload: what a block keeps for backward waits in the host's memory.

Autograd asks saved-tensor hooks where to put each tensor that an operation saves, and where it is when backward wants it
(torch.autograd.graph.saved_tensors_hooks). Here it goes to pinned host memory and comes back. The device then holds the
inside of one block; the price is that every byte crosses the bus twice. Copies run in the stream that computes, one after
the other with it. Together with checkpointing only the blocks' inputs travel.

Weights are saved by their products as well; they are on the device anyway, and stay there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from benchmarks.cell import Offload
from benchmarks.contract import Part

FEW_BYTES = 256
"""Smaller tensors are not worth a copy."""


@torch.library.custom_op("hpbench::to_host", mutates_args=())
def to_host(tensor: Tensor) -> Tensor:
    """A copy in host memory. An operation of its own, so that who observes a step sees it."""
    copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor, non_blocking=True)


def apply_offload(part: Part, what: Offload) -> None:
    """Let `part`'s blocks keep their activations on the host, if `what` says so; called after checkpointing."""
    if what != "activations":
        return
    for name in part.blocks:
        block = part.module.get_submodule(name)
        block.forward = _offloaded(block, block.forward)


def _offloaded(block: nn.Module, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(forward)
    def offloaded(*inputs: Any) -> Tensor:
        # Asked in every forward: sharded data parallelism puts gathered weights in place right before it.
        weights = {_place(parameter) for parameter in block.parameters()}

        def pack(saved: Tensor) -> Callable[[], Tensor]:
            stays = _place(saved) in weights or saved.nbytes < FEW_BYTES
            return (lambda: saved) if stays else _sent(saved)

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda fetch: fetch()):
            return forward(*inputs)

    return offloaded


def _sent(saved: Tensor) -> Callable[[], Tensor]:
    """Send a tensor to the host. Returns what fetches it."""
    if isinstance(saved, AsyncCollectiveTensor):  # its elements are still on their way from other ranks
        saved = saved.wait()
    if is_traceable_wrapper_subclass(saved):  # a DTensor: the plain tensor inside travels
        names, context = saved.__tensor_flatten__()
        kind, size, stride = type(saved), saved.size(), saved.stride()
        inner = {name: getattr(saved, name) for name in names}
        fetches = {name: _sent(value) for name, value in inner.items() if isinstance(value, Tensor)}
        others = {name: value for name, value in inner.items() if name not in fetches}
        return lambda: kind.__tensor_unflatten__(
            others | {name: fetch() for name, fetch in fetches.items()}, context, size, stride
        )
    copy, device = to_host(saved.detach()), saved.device
    return lambda: copy.to(device, non_blocking=True)


def _place(tensor: Tensor) -> int:
    """Where a tensor's elements are; views of one weight have one place."""
    while is_traceable_wrapper_subclass(tensor):
        inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        tensor = next(value for value in inner if isinstance(value, Tensor))
    return tensor.untyped_storage().data_ptr()
