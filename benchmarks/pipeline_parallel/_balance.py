"""FairScale's automatic balance: how many units each stage of a `Pipe` gets, by what each unit was seen to cost.

Costs are measured one unit after the other on one device, in time (`balance_by_time`) or in memory (`balance_by_size`), and
cut by a search that evens the stages out ("Block Partitions of Sequences", Bárány and Grinberg, 2013). The search subtracts the
least cost from all of them first, and stops as soon as stages differ by no more than the greatest that is left: units that cost
the same count for nothing, and what their number leaves over when it is divided by the stages all goes to the last stage.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.distributed as dist
from fairscale.nn.pipe.balance import balance_by_size, balance_by_time
from torch import nn

from benchmarks.cell import Cell
from benchmarks.contract import Model
from benchmarks.initialize import chain
from benchmarks.techniques.precision import PRECISIONS
from benchmarks.world import World

SECONDS = 1.0
"""How long units are timed, again and again; FairScale's own default."""
COPIES_OF_WEIGHTS = {"sgd": 2.0, "adamw": 4.0}
"""What training keeps of a weight, in weights: itself, its gradient and the optimizer's state."""


def found(by: str, model: Model, cell: Cell, world: World) -> list[tuple[str, ...]]:
    """The units of each stage, the same on every rank; to be called by all.

    Args:
        by: `time` or `size`.

    Raises:
        RuntimeError: the search left a stage empty.
    """
    count = cell.layout.degree("pp")
    answer: list[list[int]] = [_sizes(by, model, cell, count, world.device) if world.rank == 0 else []]
    if world.size > 1:  # clocks differ, and copies of a stage must not
        dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
    (sizes,) = answer
    if min(sizes) < 1:
        raise RuntimeError(f"FairScale's balance by {by} gives stages of {sizes} units, and Pipe fills each: use balance=even")
    starts = [sum(sizes[:stage]) for stage in range(count)]
    return [model.units[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _sizes(by: str, model: Model, cell: Cell, count: int, device: torch.device) -> list[int]:
    """How many units each stage gets, by a model of random weights that is thrown away."""
    whole = chain(model, model.units).to_empty(device=device)
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.02)
    sequential = nn.Sequential(OrderedDict(whole.named_children()))
    rows = cell.rows_per_microbatch()
    if by == "size":
        inputs = model.samples(cell).batch(0, rows * cell.batch.microbatches)[0].to(device)
        scale = COPIES_OF_WEIGHTS[cell.optimizer.name]
        return balance_by_size(count, sequential, inputs, chunks=cell.batch.microbatches, param_scale=scale, device=device)
    precision = PRECISIONS[cell.precision]
    with torch.autocast(device.type, dtype=precision.compute, enabled=precision.mixed):
        inputs = model.samples(cell).batch(0, rows)[0].to(device)
        return balance_by_time(count, sequential, inputs, timeout=SECONDS, device=device)
