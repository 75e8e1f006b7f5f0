"""What every pipeline shares: where to cut a model, what a stage holds, and how tied stages find each other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from benchmarks.cell import Cell
from benchmarks.contract import SEPARATE_STAGES, TIED_ACROSS_STAGES, Model, Part, PipelineParallel
from benchmarks.initialize import chain, placements
from benchmarks.world import World


def cut(costs: Sequence[int], count: int) -> list[int]:
    """Cut a row of costs into `count` runs so that the heaviest run is as light as possible (linear partition).

    Of all best cuts it takes the one whose later stages are lightest, as far as the optimum leaves a choice.

    Returns:
        How many items each run holds; at least one.

    Raises:
        ValueError: fewer items than runs.
    """
    if count > len(costs):
        raise ValueError(f"cannot cut {len(costs)} units into {count} stages: use at most {len(costs)} stages")

    @functools.cache
    def best(start: int, runs: int) -> tuple[int, tuple[int, ...]]:
        if runs == 1:
            return sum(costs[start:]), (len(costs) - start,)
        options = []
        for size in range(1, len(costs) - start - runs + 2):
            heaviest, rest = best(start + size, runs - 1)
            options.append((max(sum(costs[start : start + size]), heaviest), (size, *rest)))
        return min(options, key=lambda option: (option[0], tuple(-s for s in option[1])))

    return list(best(0, count)[1])


def stages(model: Model, count: int, sequence: int) -> list[tuple[str, ...]]:
    """The units of each of `count` stages, the heaviest stage as light as possible by forward FLOPs."""
    sizes = cut([model.forward_flops(unit, 1, sequence, causal=True) for unit in model.units], count)
    starts = [sum(sizes[:i]) for i in range(count)]
    return [tuple(model.units[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


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
