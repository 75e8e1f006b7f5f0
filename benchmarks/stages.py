"""Where a pipeline cuts a model."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from benchmarks.cell import Cell
from benchmarks.contract import Model, PipelineParallel


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


def spread(pipeline: PipelineParallel, model: Model, cell: Cell) -> list[tuple[str, ...]]:
    """The units of each stage of a cell, over all its devices."""
    return stages(model, sum(len(held) for held in pipeline.placement(cell)), cell.batch.sequence)
