"""The update of a data rank's copy of the model: what every strategy with a torch optimizer shares.

Gradients complete -> pending sums -> reduce -> unscale -> norm -> clip -> step -> zero. A strategy that reduces
while backward runs, or after it, overrides `backward`, `complete` or `reduce`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from benchmarks.contract import Assembly, OptimizerRecipe, Part, Placement, R, Replica, Update
from benchmarks.initialize import materialize
from benchmarks.techniques.precision import LossScaler, by_device
from benchmarks.world import World


@dataclass(frozen=True, kw_only=True)
class Held:
    """One parameter object of this rank, with where it comes from."""

    parameter: nn.Parameter
    placement: Placement


def held(part: Part) -> list[Held]:
    """The parameters of a part, each object once."""
    return [Held(parameter=p, placement=part.placements[name]) for name, p in part.module.named_parameters()]


def local(tensor: Tensor) -> Tensor:
    """The plain tensor with this rank's elements."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class GradientSums:
    """Sums that backward leaves open: copies of one parameter on this rank, and copies on other stages or ranks."""

    def __init__(self, parameters: Sequence[Held], world: World):
        self._world = world
        self._parameters = parameters
        copies = defaultdict(list)
        for entry in parameters:
            copies[entry.placement.name].append(entry.parameter)
        self._copies = [same for same in copies.values() if len(same) > 1]
        # Once for each weight, however many copies this rank holds: all ranks of a group must call it as often.
        self._pending = dict.fromkeys((e.placement.name, group) for e in parameters for group in e.placement.pending)
        self._same = copies

    def tied(self) -> list[nn.Parameter]:
        """The parameters of which there are copies, on this rank or on other stages."""
        elsewhere = {name for name, group in self._pending if group != "tp"}
        return [p for name, same in self._same.items() if len(same) > 1 or name in elsewhere for p in same]

    def finish(self) -> None:
        """Check that every gradient is there and in its parameter's own placement, then do the sums.

        Raises:
            RuntimeError: a parameter has no gradient.
        """
        for entry in self._parameters:
            parameter = entry.parameter
            if parameter.grad is None:
                raise RuntimeError(f"parameter {entry.placement.name!r} has no gradient after backward")
            if isinstance(parameter.grad, DTensor) and parameter.grad.placements != parameter.placements:
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        for first, *others in self._copies:
            for other in others:
                first.grad += other.grad.to(first.grad.device)
        for name, group in self._pending:
            dist.all_reduce(local(self._same[name][0].grad), group=self._world.group(group))
        for first, *others in self._copies:
            for other in others:
                other.grad.copy_(first.grad)


class GradientNorm:
    """The global gradient norm, each element of the single-device model counted once.

    Args:
        spread: axes or mesh dimensions along which *every* gradient is cut besides what its placement says (`dp` once
            fully sharded).
    """

    def __init__(self, parameters: Sequence[Held], world: World, spread: frozenset[str]):
        stages = {"pp"} if world.group("pp") is not None else set()
        spread = frozenset(axis for axis in spread if world.group(axis) is not None)
        buckets = defaultdict(list)
        for entry in parameters:
            if entry.placement.counted:
                buckets[frozenset(entry.placement.shards) | spread | stages].append(entry.parameter)
        # Stages may hold different kinds of parameters, and all must join the same reductions in the same order.
        axes = [axis for axis in ("tp", *sorted(spread), *stages) if world.group(axis) is not None]
        self._sets = [frozenset(a for i, a in enumerate(axes) if code >> i & 1) for code in range(2 ** len(axes))]
        self._sets = [s for s in self._sets if stages | spread <= s]
        self._buckets, self._axes, self._world = buckets, axes, world

    def compute(self) -> Tensor:
        """The norm, a scalar that is the same on every rank."""
        device = self._world.device
        squares = {axes: self._square(axes, device) for axes in self._sets}
        for axis in self._axes:
            # Stacked and taken apart again: indexing by a list would wait for the device.
            chosen = [axes for axes in self._sets if axis in axes]
            values = torch.stack([squares[axes] for axes in chosen])
            dist.all_reduce(values, group=self._world.group(axis))
            squares.update(zip(chosen, values.unbind(), strict=True))
        return torch.stack(list(squares.values())).sum().sqrt().float()

    def _square(self, axes: frozenset[str], device: torch.device) -> Tensor:
        """The sum of squares of this rank's gradients that are cut along `axes`, in fp64."""
        gradients = [local(p.grad) for p in self._buckets[axes]]
        if not gradients:
            return torch.zeros((), device=device, dtype=torch.float64)
        if device.type == "cpu":
            # torch's fp32 sum over many elements on a CPU was seen off by 4e-3.
            norms = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients])
            return norms.square().sum()
        return torch.nn.utils.get_total_norm(gradients).to(device, torch.float64).square()


class LocalReplica(Replica):
    """A copy that needs no reduction, and the base of those that do.

    Args:
        modules: what the schedule calls; by default the parts' modules themselves.
        parameters: those of the parts, where a wrapper has given them other names.
        spread: see `GradientNorm`.
    """

    def __init__(
        self,
        assembly: Assembly,
        optimizer: OptimizerRecipe,
        world: World,
        *,
        modules: Sequence[nn.Module] | None = None,
        parameters: Sequence[Held] | None = None,
        spread: frozenset[str] = frozenset(),
    ):
        self.modules = modules if modules is not None else [part.module for part in assembly.parts]
        self._held = parameters if parameters is not None else [entry for part in assembly.parts for entry in held(part)]
        self._optimizer = optimizer.build([entry.parameter for entry in self._held])
        self._clip = optimizer.clip
        self._sums = GradientSums(self._held, world)
        self._norm = GradientNorm(self._held, world, spread)
        scale = assembly.precision.loss_scale
        self._scaler = LossScaler(scale, world.device, dist.group.WORLD) if scale else None

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss) if self._scaler else loss

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        return run()

    def complete(self) -> None:
        """Give every parameter its gradient, where backward has not; by default it has."""

    def reduce(self) -> None:
        """Finish the reduction over the data axis; by default there is none, or backward has done it."""

    def update(self, *, want_norm: bool) -> Update:
        self.complete()
        self._sums.finish()
        self.reduce()
        overflow = False
        if self._scaler:
            overflow = self._scaler.unscale(local(entry.parameter.grad) for entry in self._held)
            self._scaler.adjust(overflow)
        norm = None
        if not overflow:
            if want_norm or self._clip:
                norm = self._norm.compute()
            if self._clip:
                # As torch.nn.utils.clip_grad_norm_ does it, epsilon included.
                factor = (self._clip / (norm + 1e-6)).clamp(max=1.0)
                for device, gradients in by_device(local(entry.parameter.grad) for entry in self._held).items():
                    torch._foreach_mul_(gradients, factor.to(device))
            self._optimizer.step()
        self._optimizer.zero_grad()
        return Update(norm, overflow)

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for entry in self._held:
            yield entry.placement, lambda p=entry.parameter: p.full_tensor() if isinstance(p, DTensor) else p.detach()


def whole_copy(assembly: Assembly, optimizer: OptimizerRecipe, world: World) -> LocalReplica:
    """The replica of a layout without a data axis."""
    for part in assembly.parts:
        materialize(part, world)
    return LocalReplica(assembly, optimizer, world)
