"""What every pipeline shares: what a stage holds, and how tied stages find each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks.cell import Cell
from benchmarks.contract import SEPARATE_STAGES, TIED_ACROSS_STAGES, Model, Part, PipelineParallel
from benchmarks.initialize import chain, placements
from benchmarks.stages import stages
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


def tied_stages(model: Model, spread: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Second name of every parameter tied across stages -> (stage that owns it, stage of the copy)."""
    stage_of = {unit: index for index, units in enumerate(spread) for unit in units}
    found = {}
    for copy, owner in model.tied.items():
        pair = (stage_of[owner.split(".")[0]], stage_of[copy.split(".")[0]])
        if pair[0] != pair[1]:
            found[copy] = pair
    return found


def tie(part: Part, model: Model, spread: Sequence[Sequence[str]], world: World) -> None:
    """Let the gradients of a parameter that two stages hold be summed; every rank must call it.

    Both copies then see the same gradient and stay equal. The second is not counted in norms.
    """
    for copy, stages_of in tied_stages(model, spread).items():
        group = f"tied:{copy}"
        world.make_group(group, ("pp",), only={"pp": stages_of})
        for name in (model.tied[copy], copy):
            if name in part.placements:
                counted = name != copy
                part.placements[name] = dataclasses.replace(part.placements[name], pending=(group,), counted=counted)


def tied_across(cell: Cell, model: Model) -> frozenset[str]:
    """The trait of a cell whose stages share a parameter."""
    spread = stages(model, cell.layout.degree("pp"), cell.batch.sequence)
    return frozenset({TIED_ACROSS_STAGES}) if tied_stages(model, spread) else frozenset()


class StageOfEachProcess(PipelineParallel):
    """A pipeline with one process for each stage, which holds that stage alone."""

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return tied_across(cell, model) | {SEPARATE_STAGES}

    def split(self, model: Model, cell: Cell, world: World) -> list[Part]:
        spread = stages(model, cell.layout.degree("pp"), cell.batch.sequence)
        index = world.coordinate("pp")
        mine = part(model, spread[index], index, len(spread))
        tie(mine, model, spread, world)
        return [mine]
