"""Model + layout + techniques -> engine, in one fixed order:

    pipeline split -> tensor shard -> checkpointing and offload -> compile -> precision -> data wrap

Hybrids are not written one by one: n data, m tensor and k pipeline files give n * m * k layouts.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import models
from benchmarks.cell import STANDARD_LIBRARY, Cell, Optimizer
from benchmarks.contract import (
    Assembly,
    Batch,
    DataParallel,
    Engine,
    Model,
    OptimizerRecipe,
    Part,
    PipelineParallel,
    Placement,
    Replica,
    Schedule,
    StepResult,
    Strategy,
    TensorParallel,
    check,
)
from benchmarks.errors import UsageError
from benchmarks.initialize import chain, placements
from benchmarks.layout import Layout
from benchmarks.replica import whole_copy
from benchmarks.schedule import Accumulate
from benchmarks.site import Site
from benchmarks.strategies import process_degrees, strategies
from benchmarks.techniques import limits
from benchmarks.techniques.checkpointing import apply_checkpointing, framework
from benchmarks.techniques.compilation import apply_compile
from benchmarks.techniques.float8 import apply_float8, float8_problem
from benchmarks.techniques.host_optimizer import HostRecipe
from benchmarks.techniques.offload import apply_offload
from benchmarks.techniques.precision import PRECISIONS, apply_precision
from benchmarks.world import World


def compose(
    cell: Cell,
    world: World,
    *,
    optimizer: Optimizer | None = None,
    loss_factor: float = 1.0,
    loss_scale: float | None = None,
) -> Engine:
    """The engine of a cell on this rank.

    Args:
        optimizer: instead of the cell's own, for verification.
        loss_factor: what the loss is multiplied by.
        loss_scale: instead of the precision's own first loss scale, where it has one.
    """
    found = strategies(cell.layout)
    pipeline, tensor, data = (found.get(axis) for axis in ("pp", "tp", "dp"))
    model = models.load(cell.model)
    precision = PRECISIONS[cell.precision]
    if loss_scale and precision.loss_scale:
        precision = dataclasses.replace(precision, loss_scale=loss_scale)

    parts = pipeline.split(model, cell, world) if isinstance(pipeline, PipelineParallel) else [_whole(model)]
    for part in parts:
        model.share_batch(part.module, world)
    assembly = Assembly(
        model=model,
        parts=parts,
        loss=model.loss,
        boundary=model.boundary,
        precision=precision,
        traits=_traits(found, cell, model, leave_out="dp"),
        caveats=pipeline.caveats(world.device.type) if isinstance(pipeline, PipelineParallel) else (),
    )
    if isinstance(tensor, TensorParallel):
        for part in parts:  # each by its own plan, as this rank may hold several
            alone = dataclasses.replace(assembly, parts=[part])
            assembly = tensor.shard(alone, tensor_plan(model, part, world.degrees["tp"]), world)
        assembly = dataclasses.replace(assembly, parts=parts)
    assembly = dataclasses.replace(assembly, loss=_multiplied(assembly.loss, loss_factor))
    for part in assembly.parts:
        if cell.precision == "fp8":
            apply_float8(part)
        apply_checkpointing(part, cell.checkpointing, precision, world.device.type)
        apply_offload(part, cell.offload)
        apply_compile(part, cell.compile)
        apply_precision(part.module, precision, world.device.type)
    recipe = _recipe(optimizer or cell.optimizer, cell)
    if cell.offload == "optimizer" and "optimizer" not in _own_offload(data):
        recipe = HostRecipe(kind=recipe.kind, settings=recipe.settings, clip=recipe.clip)
    replica = (
        data.wrap(assembly, recipe, cell, world) if isinstance(data, DataParallel) else whole_copy(assembly, recipe, world)
    )
    if isinstance(pipeline, PipelineParallel):
        schedule = pipeline.schedule(assembly, replica, cell, world)
    else:
        schedule = Accumulate(assembly, replica, cell.batch.microbatches)
    return ComposedEngine(assembly, schedule, replica, world, loss_factor)


class ComposedEngine(Engine):
    """A schedule that feeds a replica."""

    def __init__(self, assembly: Assembly, schedule: Schedule, replica: Replica, world: World, loss_factor: float):
        self.parts, self.traits = assembly.parts, assembly.traits
        of_parts = dict.fromkeys(caveat for part in assembly.parts for caveat in part.caveats)
        self.caveats = (*of_parts, *assembly.caveats, *replica.caveats)
        self._assembly, self._schedule, self._replica, self._world = assembly, schedule, replica, world
        self._loss_factor = loss_factor

    def step(self, batch: Batch, *, want_norm: bool = False) -> StepResult:
        with self._assembly.step_context():
            loss = self._schedule.run(batch)
        update = self._replica.update(want_norm=want_norm)
        if loss is not None and self._loss_factor != 1.0:
            loss = loss / self._loss_factor
        return StepResult(loss, update.norm, update.skipped)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for placement, value in self._replica.parameters():
            yield placement.name, self._gathered(placement, value())

    def close(self) -> None:
        self._replica.modules = ()

    def _gathered(self, placement: Placement, tensor: Tensor) -> Tensor:
        """The whole parameter from this rank's share of it."""
        for axis, dimension in placement.shards.items():
            if tuple(tensor.shape) != placement.shape:
                group = self._world.group(axis)
                shares = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
                dist.all_gather(shares, tensor.contiguous(), group=group)
                tensor = torch.cat(shares, dimension)
        assert tuple(tensor.shape) == placement.shape, f"{placement.name}: {tuple(tensor.shape)}, not {placement.shape}"
        return tensor


def tensor_plan(model: Model, part: Part, degree: int) -> dict[str, str]:
    """Module name -> style for the modules of a part.

    A vocabulary that `degree` does not divide stays whole on every rank, embedding and head alike.
    """
    whole = {"vocabulary": "lookup", "head": "whole"}
    plan: dict[str, str] = {}
    for name, module in part.module.named_modules():
        for pattern, style in model.tensor_plan:
            if not fnmatch.fnmatchcase(name, pattern):
                continue
            uneven = style in whole and module.weight.shape[0] % degree
            plan[name] = whole[style] if uneven else style
    return plan


def illegal(cell: Cell, site: Site) -> str | None:
    """Why the cell cannot run on the site, in one sentence; None if it can.

    Raises:
        UsageError: a misspelt model, implementation or knob.
    """
    what = f"model '{cell.model}'"
    try:
        model = models.load(cell.model)
        what = f"layout '{cell.layout}'"
        found = strategies(cell.layout)
        what = f"checkpointing '{cell.checkpointing}'"
        framework(cell.checkpointing)
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).split(".")[0]
        return f"{what} needs {package}, which is not installed: pip install {package}"
    except UsageError:
        raise
    except Exception as error:  # a framework may fail in any way as it is imported
        return f"{what} cannot be imported here: {type(error).__name__}: {' '.join(str(error).split())}"
    problem = _sizes_problem(cell, site, model, found) or _strategies_problem(cell, site, model, found)
    return problem or float8_problem(cell, site) or limits.problem(cell, _traits(found, cell, model, leave_out=""))


def _sizes_problem(cell: Cell, site: Site, model: Model, found: dict[str, Strategy]) -> str | None:
    """What does not divide, or does not fit."""
    layout, batch = cell.layout, cell.batch
    dp, tp = (layout.degree(axis) for axis in ("dp", "tp"))
    if site.kind == "cuda" and layout.devices > site.count:
        return f"layout '{layout}' uses {layout.devices} devices and there are {site.count}: use smaller degrees"
    if batch.global_size % (dp * batch.microbatches):
        return (
            f"a global batch of {batch.global_size} cannot be cut into {dp} data ranks x {batch.microbatches} microbatches: "
            f"use a multiple of {dp * batch.microbatches}"
        )
    if model.longest_sequence is None and cell.data != STANDARD_LIBRARY:
        return f"{cell.model} is trained on images and cannot read the text {cell.data!r}: leave --text out"
    if model.longest_sequence is not None and batch.sequence > model.longest_sequence:
        return f"{batch.sequence} tokens are more than {cell.model}'s {model.longest_sequence}: use a shorter sequence"
    pipeline, units = found.get("pp"), len(model.units)
    if isinstance(pipeline, PipelineParallel):
        placement = pipeline.placement(cell)
        stages, each = sum(map(len, placement)), max(map(len, placement))
        if stages > units:
            advice = f"use at most pp={units // each}" if units // each > 1 else f"use a model of at least {2 * each} units"
            return f"{cell.model} has {units} units, which cannot make {stages} stages: {advice}"
    return model.tensor_problem(tp) if tp > 1 else None


def _strategies_problem(cell: Cell, site: Site, model: Model, found: dict[str, Strategy]) -> str | None:
    """The first strategy's objection."""
    if cell.offload == "parameters" and "parameters" not in _own_offload(found.get("dp")):
        return (
            f"layout '{cell.layout}' works on parameters where they are, and cannot leave them on the host: use a data axis "
            "that gathers them block by block, or offload=optimizer"
        )
    for axis, strategy in found.items():
        written = cell.layout.get(axis)
        if len(written.degrees) > 1 and not strategy.nested:
            return f"{written}: {written.implementation} takes one degree: write {axis}={written.degree}"
        reason = strategy.unsupported(cell, site, _traits(found, cell, model, leave_out=axis))
        if reason:
            return f"{cell.layout.get(axis)}: {reason}"
    return None


def processes(layout: Layout) -> int:
    """How many processes the layout needs."""
    degrees = process_degrees(layout)
    return degrees["pp"] * degrees["dp"] * degrees["tp"]


def knobs(cell: Cell) -> dict[str, Any]:
    """Axis -> the values of all knobs of its implementation, defaults included, and the `configuration` of its framework."""
    found = {}
    for axis, strategy in strategies(cell.layout).items():
        configuration = strategy.configuration(cell)
        values = dataclasses.asdict(strategy) | ({"configuration": configuration} if configuration else {})  # type: ignore[call-overload]
        if values:
            found[axis] = values
    return found


def _own_offload(data: Strategy | None) -> frozenset[str]:
    return data.offloads if isinstance(data, DataParallel) else frozenset()


def changed_dtypes(cell: Cell) -> dict[str, str]:
    """What knobs change of the precision's dtypes: subject -> name."""
    return {subject: name for s in strategies(cell.layout).values() for subject, name in s.dtypes().items()}


def repeats(cell: Cell) -> int:
    """Of how many microbatches the pipeline runs every block again by a checkpointing of its own."""
    pipeline = strategies(cell.layout).get("pp")
    return pipeline.repeats(cell) if isinstance(pipeline, PipelineParallel) else 0


def _traits(found: dict[str, Strategy], cell: Cell, model: Model, *, leave_out: str) -> frozenset[str]:
    return check(frozenset().union(*(s.traits(cell, model) for axis, s in found.items() if axis != leave_out)))


def _multiplied(loss: Callable[[Tensor, Tensor], Tensor], factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: loss(output, target) * factor


def _whole(model: Model) -> Part:
    module = chain(model, model.units)
    return Part(model=model, module=module, index=0, count=1, blocks=model.blocks, placements=placements(model, module))


def _recipe(optimizer: Optimizer, cell: Cell) -> OptimizerRecipe:
    clip = cell.clip
    settings: dict[str, Any] = {"lr": optimizer.rate(cell.batch.global_size), "weight_decay": optimizer.weight_decay}
    if optimizer.name == "sgd":
        return OptimizerRecipe(kind=torch.optim.SGD, settings=settings, clip=clip)
    return OptimizerRecipe(kind=torch.optim.AdamW, settings={**settings, "betas": optimizer.betas}, clip=clip)
