"""A stand-in for an engine: the whole model on one process, written out. What tests do to it they do to any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import initialize, models
from benchmarks.contract import Batch, Engine, Part, StepResult

WORLD: Any = SimpleNamespace(
    rank=0,
    size=1,
    device=torch.device("cpu"),
    devices=(torch.device("cpu"),),
    degrees={"pp": 1, "dp": 1, "tp": 1},
    seed=0,
    coordinate=lambda axis: 0,
)
"""A world of one, without a process group."""


class PlainEngine(Engine):
    """Accumulates microbatches and updates with any optimizer."""

    caveats = ()

    def __init__(
        self,
        model_name: str,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        factor: float = 1.0,
        microbatches: int = 1,
        autocast: torch.dtype | None = None,
    ):
        self.model = models.load(model_name)
        chain = initialize.chain(self.model, self.model.units)
        placements = initialize.placements(self.model, chain)
        self.parts = [Part(model=self.model, module=chain, index=0, count=1, blocks=self.model.blocks, placements=placements)]
        initialize.materialize(self.parts[0], WORLD)
        self.optimizer = optimizer(chain.parameters())
        self._factor, self._microbatches, self._autocast = factor, microbatches, autocast

    @property
    def module(self) -> nn.Module:
        return self.parts[0].module

    def step(self, batch: Batch, *, want_norm: bool = False) -> StepResult:
        count = self._microbatches
        total = torch.zeros(())
        for inputs, targets in zip(batch.inputs.chunk(count), batch.targets.chunk(count), strict=True):
            with torch.autocast("cpu", dtype=self._autocast) if self._autocast else nullcontext():
                output = self.module(inputs)
            loss = self.model.loss(output, targets) / count
            (loss * self._factor).backward()
            total += loss.detach()
        norm = nn.utils.get_total_norm([p.grad for p in self.module.parameters()]) if want_norm else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepResult(total, norm, False)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.module.named_parameters():
            yield self.parts[0].placements[name].name, parameter.detach()

    def close(self) -> None:
        pass
