"""Bytes at the peak against bytes counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.memory_tracker import PURPOSES, Tracker

SCALARS = 64
"""Bytes of losses, counters and the like that are not worth counting."""


def tracked(module: nn.Module, step: Callable[[], Any], *, before: int = 2) -> dict[str, int]:
    with Tracker(SimpleNamespace(parts=[SimpleNamespace(module=module)])) as tracker:  # type: ignore[arg-type]
        for _ in range(before):
            step()
        tracker.mark()
        step()
    peak = tracker.peak()
    assert peak["total"] == sum(peak[purpose] for purpose in PURPOSES)
    return peak


@pytest.fixture(autouse=True)
def _nothing_else_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of other tests would be counted as `other`."""
    import gc

    gc.collect()


def alive() -> int:
    """Bytes of all tensors that Python knows."""
    import gc

    tensors = [t for t in gc.get_objects() if issubclass(type(t), Tensor) and t.device.type == "cpu"]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_activations_of_a_wide_batch() -> None:
    """x (1024, 4) @ w (4, 4), three times tanh, sum: an activation has 16384 bytes.

    The fullest moment is the first tanh that backward meets: the results of all three are still there, the gradient of
    its input is new, and there is the batch. The product itself is gone, as tanh needs its own result alone.
    """
    layer, x = nn.Linear(4, 4, bias=False), torch.randn(1024, 4)
    others = alive() - x.nbytes - 4 * 16

    def step() -> None:
        (x @ layer.weight.t()).tanh().tanh().tanh().sum().backward()
        layer.weight.grad = None

    peak = tracked(layer, step)
    assert peak["parameters"] == 4 * 4 * 4
    assert peak["activations"] == pytest.approx(3 * 16384, abs=SCALARS)
    assert peak["other"] - others == pytest.approx(2 * 16384, abs=SCALARS)
    assert peak["gradients"] == peak["optimizer_state"] == 0


def test_state_and_gradients_of_a_large_weight() -> None:
    """AdamW keeps two values for each of 64 x 64; gradients wait through the second microbatch's forward and backward."""
    layer, x = nn.Linear(64, 64, bias=False), torch.randn(2, 64)
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
    weight = 64 * 64 * 4

    def step() -> None:
        for _ in range(2):
            layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    peak = tracked(layer, step)
    assert peak["parameters"] == weight
    assert peak["gradients"] == weight
    assert peak["optimizer_state"] == pytest.approx(2 * weight, abs=SCALARS)


def test_a_buffer_that_is_emptied_and_refilled_counts_while_it_is_full() -> None:
    layer, buffer = nn.Linear(1, 1, bias=False), torch.zeros(1000)

    def step() -> None:
        buffer.untyped_storage().resize_(0)
        big = torch.empty(500)
        del big
        buffer.untyped_storage().resize_(8000)
        buffer.untyped_storage().resize_(0)

    others = alive() - 4000 - 4
    assert tracked(layer, step)["other"] - others == pytest.approx(8000, abs=SCALARS)


def test_checkpointing_holds_fewer_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()) for _ in range(8))
    x = torch.randn(1024, 8)

    def run(call: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[], None]:
        def step() -> None:
            y = x
            for block in blocks:
                y = call(block, y)
            y.sum().backward()
            blocks.zero_grad()

        return step

    whole = tracked(blocks, run(lambda block, y: block(y)))["activations"]
    repeated = tracked(blocks, run(lambda block, y: checkpoint(block, y, use_reentrant=False)))["activations"]
    # Backward needs the result of each of 16 tanh and of each second Linear's input, the tanh before it: 16 tensors of
    # 32768 bytes. With checkpointing, the inputs of 8 blocks (the first is the batch) and the inside of one.
    assert whole == pytest.approx(16 * 32768, rel=0.1)
    assert repeated < 0.7 * whole


def test_an_operation_that_returns_a_view_adds_nothing() -> None:
    layer, x = nn.Linear(1, 1, bias=False), torch.zeros(1000)
    others = alive() - x.nbytes - 4

    def views() -> Iterator[Tensor]:
        yield x.view(10, 100)
        yield x[5:].t() if x.dim() > 1 else x[5:]

    peak = tracked(layer, lambda: list(views()))
    assert peak["other"] - others == pytest.approx(4000, abs=SCALARS)
