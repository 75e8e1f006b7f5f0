"""What every pipeline shares: what a stage holds, and how tied stages find each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import nn

from benchmarks.cell import Cell
from benchmarks.contract import SEPARATE_STAGES, TIED_ACROSS_STAGES, Model, Part, PipelineParallel, Placement
from benchmarks.initialize import chain, placements
from benchmarks.stages import spread
from benchmarks.world import World


def part(model: Model, units: Sequence[str], index: int, count: int) -> Part:
    """One stage, on the meta device."""
    module = chain(model, units)
    return Part(
        model=model,
        module=module,
        index=index,
        count=count,
        blocks=tuple(unit for unit in units if unit in model.blocks),
        placements=placements(model, module),
    )


def in_one_process(model: Model, stages: Sequence[Sequence[str]]) -> tuple[dict[str, nn.Module], dict[str, Placement]]:
    """The units of all stages, on the meta device, for a process that holds all of them, and where their parameters come from.

    They are made stage by stage, so that a weight tied across two devices becomes two copies; the update sums their gradients.
    """
    chains = [chain(model, units) for units in stages]
    where = {name: placement for c in chains for name, placement in placements(model, c).items()}
    for copy in tied_stages(model, stages):
        where[copy] = dataclasses.replace(where[copy], counted=False)
    return {name: unit for c in chains for name, unit in c.named_children()}, where


def tied_stages(model: Model, stages: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Second name of every parameter tied across stages -> (stage that owns it, stage of the copy)."""
    stage_of = {unit: index for index, units in enumerate(stages) for unit in units}
    found = {}
    for copy, owner in model.tied.items():
        pair = (stage_of[owner.split(".")[0]], stage_of[copy.split(".")[0]])
        if pair[0] != pair[1]:
            found[copy] = pair
    return found


def tie(
    parts: Sequence[Part],
    model: Model,
    stages: Sequence[Sequence[str]],
    placement: Sequence[Sequence[int]],
    world: World,
) -> None:
    """Let the gradients of a parameter that two stages hold be summed; every rank must call it.

    Both copies then see the same gradient and stay equal. The second is not counted in norms. Where one rank holds
    both stages the update sums its own copies, and no group is needed.
    """
    rank_of = {stage: rank for rank, held in enumerate(placement) for stage in held}
    for copy, pair in tied_stages(model, stages).items():
        ranks = sorted({rank_of[stage] for stage in pair})
        pending = (f"tied:{copy}",) if len(ranks) > 1 else ()
        for group in pending:
            world.make_group(group, ("pp",), only={"pp": ranks})
        for part in parts:
            for name in {model.tied[copy], copy} & part.placements.keys():
                counted = name != copy
                part.placements[name] = dataclasses.replace(part.placements[name], pending=pending, counted=counted)


def tied_across(pipeline: PipelineParallel, cell: Cell, model: Model) -> frozenset[str]:
    """The trait of a cell whose stages share a parameter."""
    return frozenset({TIED_ACROSS_STAGES}) if tied_stages(model, spread(pipeline, model, cell)) else frozenset()


class SpreadStages(PipelineParallel):
    """A pipeline whose processes hold one or several stages each, as its `placement` says."""

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return tied_across(self, cell, model) | {SEPARATE_STAGES}

    def split(self, model: Model, cell: Cell, world: World) -> list[Part]:
        stages, placement = spread(self, model, cell), self.placement(cell)
        mine = [part(model, stages[index], index, len(stages)) for index in placement[world.coordinate("pp")]]
        tie(mine, model, stages, placement, world)
        return mine
