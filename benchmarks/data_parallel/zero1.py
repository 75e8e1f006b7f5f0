"""ZeRO stage 1 by DeepSpeed: every rank holds all parameters and gradients, and the optimizer state of its share alone
(Rajbhandari et al., ZeRO, 2020).

Gradients are averaged over the data ranks, each rank updates its 1/N of the flattened parameters, and the updated shares
are all-gathered. DeepSpeed owns norm, clipping and step. Forward and backward are those of the plain module, so that any
schedule can drive them, and the gradients are reduced once at the end, as in DeepSpeed's own pipeline engine.

Memory of a rank (section 5 of the paper, in fp32 with AdamW, for P parameters on N ranks): 4 P parameters + 4 P gradients
+ 8 P / N state; DeepSpeed updates a flat copy of its share, 4 P / N more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import Assembly, DataParallel, OptimizerRecipe, Placement, R, Replica, Shares, Update
from benchmarks.data_parallel import _deepspeed as shared
from benchmarks.replica import GradientSums
from benchmarks.site import Site
from benchmarks.techniques.precision import LossScaler
from benchmarks.world import World

PRELOAD = shared.PRELOAD


class _Replica(Replica):
    """One DeepSpeed engine for all parts of this rank."""

    def __init__(self, assembly: Assembly, optimizer: OptimizerRecipe, world: World, config: dict[str, Any]):
        self._held, self._world, self._clip = shared.local_parts(assembly, world), world, optimizer.clip
        self._sums = GradientSums(self._held, world)
        self._copies = self._sums.tied() if world.degrees["dp"] > 2 else []
        scale = assembly.precision.loss_scale
        self._scaler = LossScaler(scale, world.device, dist.group.WORLD) if scale else None
        modules = nn.ModuleList(part.module for part in assembly.parts)
        inner = optimizer.build([entry.parameter for entry in self._held])
        self._engine = shared.start(modules, inner, shared.ready(config, world), world)
        self.modules = [part.module for part in assembly.parts]

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss) if self._scaler else loss

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        return run()

    def update(self, *, want_norm: bool) -> Update:
        self._sums.finish()
        for parameter in self._copies:
            # DeepSpeed's ring adds the ranks up in an order that depends on an element's place in its buffer, which differs
            # between the copies of a weight: from three ranks on they would part in their last bits. Equal terms do not.
            dist.all_reduce(parameter.grad, dist.ReduceOp.SUM, self._world.group("dp"))
            parameter.grad /= self._world.degrees["dp"]
        if self._scaler:
            overflow = self._scaler.unscale(entry.parameter.grad for entry in self._held)
            self._scaler.adjust(overflow)
            if overflow:
                self._engine.optimizer.zero_grad()
                return Update(None, skipped=True)
        # The way of DeepSpeed's own pipeline engine: reduce what backward left, then step.
        self._engine.optimizer.reduce_gradients(pipeline_parallel=True)
        # By itself DeepSpeed computes the norm in every step, wanted or not.
        self._engine.optimizer.compute_grad_norm = want_norm or self._clip > 0
        self._engine.step()
        # DeepSpeed leaves out the step, and says nothing, where the norm is not finite.
        skipped = bool(self._engine.optimizer.overflow)
        return Update(shared.norm_of(self._engine, self._world) if want_norm and not skipped else None, skipped)

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for entry in self._held:
            yield entry.placement, lambda p=entry.parameter: p.detach()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of DeepSpeed's `zero_optimization`."""

    offloads = frozenset({"optimizer"})

    bucket_elements: int = shared.OWN_DEFAULT_BUCKET
    """Gradient elements that are reduced together (`reduce_bucket_size`) and parameters gathered together."""

    def configuration(self, cell: Cell) -> dict[str, Any]:
        return shared.configuration(
            cell,
            1,
            overlap_comm=False,
            contiguous_gradients=False,
            reduce_bucket_size=self.bucket_elements,
            allgather_bucket_size=self.bucket_elements,
        )

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> Replica:
        return _Replica(assembly, optimizer, world, self.configuration(cell))

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        part = 1 / cell.layout.degree("dp")
        return Shares(optimizer_state=part, master=part)  # DeepSpeed updates a flat copy of its share

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        return shared.objection(cell, site, traits)
