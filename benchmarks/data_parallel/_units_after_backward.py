"""Reduces FSDP2's units once a step, after all backwards: for schedules that write weight gradients without autograd's hooks.

By itself FSDP2 reduces a unit (a block) when autograd has gone through it. Where input and weight gradients are computed
apart, that moment comes with the weight gradients missing: what was reduced then was seen off by half, silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch.distributed.fsdp import FSDPModule

from benchmarks.contract import R
from benchmarks.replica import LocalReplica


class UnitsAfterBackward(LocalReplica):
    """Lets whole gradients add up on every rank, and reduces all units at the end of a step."""

    modules: list[FSDPModule]

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        module = self.modules[part]
        _let_reduce(module, False)
        result = run()
        for unit in _units(module):
            unit.post_backward()  # adds what came to what is there, in the dtype of the reduction
        return result

    def complete(self) -> None:
        # What torch's own pipeline stage does (perform_reduce_grad in torch/distributed/pipelining/stage.py); there is no
        # public way yet.
        for module in self.modules:
            _let_reduce(module, True)
            for unit in _units(module):
                unit.post_backward()
            module._get_fsdp_state()._root_post_backward_final_callback()


def _let_reduce(module: FSDPModule, now: bool) -> None:
    module.set_requires_gradient_sync(now)
    module.set_is_last_backward(now)
    # Weight gradients need the very parameters that the forward was run with.
    module.set_reshard_after_backward(now)


def _units(module: FSDPModule) -> Iterator[Any]:
    """The groups of parameters below `module` that are gathered and reduced together."""
    for state in module._get_fsdp_state()._state_ctx.all_states:
        yield from state._fsdp_param_groups
