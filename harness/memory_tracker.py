"""What tensors live on this rank at the fullest moment of a step, byte by byte and by what they are for.

As `torch.distributed._tools.mem_tracker` it follows every storage from the operation that makes it to its end. What a
storage was for is decided afterwards, from what it is seen to be at any time (a gradient is known as one only when backward
has put it there), so that every byte at the peak has exactly one purpose. It sees what torch's Python side can see: a buffer
that only C++ holds is found if it is made while the tracker runs. While it runs, autograd adds two gradients of an activation
into a third tensor and not in place, so `other` may show one of them too many.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.contract import Engine
from harness.observe import WRAPPERS

PURPOSES = ("parameters", "gradients", "optimizer_state", "activations", "other")


class Tracker(TorchDispatchMode):
    """Follows storages while it is entered.

    - parameters: of the model, gathered copies and buffers included.
    - gradients: what was a parameter's `.grad` at any time.
    - optimizer_state: the optimizer's, and master copies.
    - activations: made where gradients are recorded: in forward, and in its repetition by checkpointing.
    - other: everything else: batches, gradients of activations, communication buffers, temporaries of the update.
    """

    def __init__(self, engine: Engine):
        super().__init__()
        self._engine = engine
        self._numbers = itertools.count()
        self._storages: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}  # id -> number, reference
        self._bytes: dict[int, int] = {}
        self._purpose: dict[int, str] = {}
        self._events: list[tuple[int, int]] = []  # number, change in bytes
        self._mark = 0
        self._hooked: set[int] = set()  # ids of parameters
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Tracker:
        for kind, thing in ((type(thing), thing) for thing in gc.get_objects()):
            if issubclass(kind, Tensor):
                self._see(thing, "other")
        for part in self._engine.parts:
            for parameter in part.module.parameters():
                self._know(parameter)
            for buffer in part.module.buffers():
                self._see(buffer, "parameters")
        for register, hook in (
            (register_optimizer_step_pre_hook, self._before_update),
            (register_optimizer_step_post_hook, self._after_update),
        ):
            self._stack.callback(register(hook).remove)
        self._stack.enter_context(self._watched_resize())
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, WRAPPERS) for kind in types):
            return NotImplemented
        for argument in tree_leaves((args, kwargs)):
            if isinstance(argument, nn.Parameter):
                self._know(argument)
        result = func(*args, **(kwargs or {}))
        purpose = "activations" if torch.is_grad_enabled() else "other"
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._see(tensor, purpose, weak=True)
        return result

    def mark(self) -> None:
        """The step whose peak is wanted begins here."""
        self._mark = len(self._events)

    def peak(self) -> dict[str, int]:
        """Bytes at the fullest moment since the mark by purpose; they add up to `total`."""
        alive: dict[int, int] = {}
        total = 0
        best_total, best_at = -1, 0
        for at, (_, change) in enumerate(self._events):
            total += change
            if at >= self._mark - 1 and total > best_total:
                best_total, best_at = total, at
        for number, change in self._events[: best_at + 1]:
            alive[number] = alive.get(number, 0) + change
        found = dict.fromkeys(PURPOSES, 0)
        for number, size in alive.items():
            found[self._purpose[number]] += size
        return {"total": sum(found.values()), **found}

    def _see(self, tensor: Tensor, purpose: str, *, weak: bool = False) -> None:
        """Take note of a tensor's storage, or of its new size.

        Args:
            purpose: replaces a less certain one, which is one that stands later in `PURPOSES`.
            weak: whether `purpose` is only for a storage that is new.
        """
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        if tensor.device.type == "meta" or tensor.layout != torch.strided or isinstance(tensor, WRAPPERS):
            return
        storage = tensor.untyped_storage()
        known = self._storages.get(id(storage))
        if known is None:
            number = next(self._numbers)
            reference = weakref.ref(storage, functools.partial(self._forget, id(storage)))
            self._storages[id(storage)] = (number, reference)
            self._bytes[number] = 0
            self._purpose[number] = purpose
        else:
            number = known[0]
            if not weak and PURPOSES.index(purpose) < PURPOSES.index(self._purpose[number]):
                self._purpose[number] = purpose
        self._resize(number, storage.nbytes())

    def _know(self, parameter: nn.Parameter) -> None:
        """Note a parameter and, as soon as it has one, its gradient."""
        self._see(parameter, "parameters")
        if id(parameter) in self._hooked or not (parameter.requires_grad and parameter.is_leaf):
            return
        self._hooked.add(id(parameter))
        self._stack.callback(parameter.register_post_accumulate_grad_hook(self._gradient).remove)

    def _gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._see(parameter.grad, "gradients")

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._gradient(parameter)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._see(parameter, "optimizer_state")
                for value in optimizer.state.get(parameter, {}).values():
                    if isinstance(value, Tensor):
                        self._see(value, "optimizer_state")

    def _resize(self, number: int, size: int) -> None:
        if size != self._bytes[number]:
            self._events.append((number, size - self._bytes[number]))
            self._bytes[number] = size

    def _forget(self, key: int, _: Any) -> None:
        number, _ = self._storages.pop(key)
        self._resize(number, 0)

    @contextlib.contextmanager
    def _watched_resize(self) -> Iterator[None]:
        """Fully sharded training frees and refills gathered parameters by resizing their storage, which is no operation."""
        original: Callable[..., Any] = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            if id(storage) in self._storages:
                self._resize(self._storages[id(storage)][0], storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original
