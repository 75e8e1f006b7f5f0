"""From a suite to cells: every combination of a group's axes on a site. Imports no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from benchmarks import models
from benchmarks.cell import Batch, Cell
from benchmarks.errors import UsageError
from benchmarks.layout import Layout
from benchmarks.site import Site
from harness.selection import excluded, parse_exclusion, select
from harness.suites import Group, Overrides, Suite, groups

MOST_CELLS = 10_000
"""A plan of more is asked about."""


def expand(
    suite: Suite,
    site: Site,
    *,
    overrides: Overrides | None = None,
    filter_text: str | None = None,
    most: int | None = MOST_CELLS,
) -> list[Cell]:
    """All cells of a suite on a site, without those it excludes, each once.

    A cell's `processes` are its devices until `harness.legality` has asked its implementations.

    Args:
        overrides: fields that replace those of every group.
        most: how many cells there may be; None: any number.

    Raises:
        UsageError: an unknown key or name, a value of another kind, too many cells, or none is left.
    """
    if suite.device not in (None, site.kind):
        raise UsageError(
            f"suite {suite.name} is for {suite.device} devices and this is {site}: run another suite, "
            f"see what is missing with 'hpbench doctor', or plan for another machine by --devices 8x{suite.device}:80GiB"
        )
    wanted = [group for group in groups(suite, overrides or {}) if group.device in (None, site.kind)]
    if most is not None:
        # Far too many are not even counted one by one.
        combinations = sum(_combinations(group, site, suite.where) for group in wanted)
        if combinations > 10 * most:
            raise _too_many(combinations, most, suite.where)
    cells: dict[str, Cell] = {}
    for group in wanted:
        for cell in _product(group, site, suite.where):
            cells.setdefault(cell.id, cell)
    if not cells:
        raise UsageError(f"no cell is left {suite.where}: 'exclude' and 'device' take all of them on {site}; leave some")
    selected = select(list(cells.values()), filter_text) if filter_text else list(cells.values())
    if most is not None and len(selected) > most:
        raise _too_many(len(selected), most, suite.where)
    return selected


def worlds_up_to(count: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `count` devices."""
    return tuple(2**power for power in range(count.bit_length()))


def _too_many(count: int, most: int, where: str) -> UsageError:
    return UsageError(
        f"{count:,} cells are asked for {where}, and more than {most:,} are seldom meant: "
        "multiply by fewer values, or say --yes"
    )


def _combinations(group: Group, site: Site, where: str) -> int:
    batch = group.batch
    axes = (group.model, _layouts(group, site, where), group.precision, group.checkpointing, group.offload, group.compile)
    axes += (group.clip, group.seed, batch.global_size, batch.microbatches, batch.sequence)
    return math.prod(map(len, axes))


def _product(group: Group, site: Site, where: str) -> Iterator[Cell]:
    exclusions = [parse_exclusion(entry, where) for entry in group.exclude]
    axes = itertools.product(
        group.model,
        _layouts(group, site, where),
        group.precision,
        group.checkpointing,
        group.offload,
        group.compile,
        group.clip,
        group.seed,
        group.batch.global_size,
        group.batch.microbatches,
        group.batch.sequence,
    )
    for model, layout, precision, checkpointing, offload, compiled, clip, seed, rows, microbatches, sequence in axes:
        protocol = group.protocol
        if rows == "max":
            _check_search(site, where)
            rows, protocol = layout.degree("dp") * microbatches, protocol.model_copy(update={"search": True})
        elif group.scaling == "weak":
            rows *= layout.devices
        cell = Cell(
            model=model,
            layout=layout,
            processes=layout.devices,
            devices=layout.devices,
            precision=precision,
            checkpointing=checkpointing,
            offload=offload,
            compile=compiled,
            clip=clip,
            batch=_batch(model, rows, microbatches, sequence),
            optimizer=group.optimizer,
            seed=seed,
            data=group.data,
            protocol=protocol,
        )
        if not any(excluded(cell, exclusion) for exclusion in exclusions):
            yield cell


def _check_search(site: Site, where: str) -> None:
    if site.kind == "cpu" and not site.device_memory_bytes:
        raise UsageError(
            f"batch is 'max' {where}, and processes on CPUs have no memory of their own to fill: "
            "give them some, for example by --device-memory 2GiB"
        )


def _batch(model: str, rows: int, microbatches: int, sequence: int) -> Batch:
    """What is trained on in a step; a sequence means nothing to a model of images, and shall not multiply its cells."""
    tokens = {"sequence": sequence} if models.reads_text(model) else {}
    return Batch(global_size=rows, microbatches=microbatches, **tokens)


def _layouts(group: Group, site: Site, where: str) -> list[Layout]:
    found_here = worlds_up_to(site.count)
    words = {"devices": found_here, "largest": found_here[-1:]}
    worlds = tuple(dict.fromkeys(n for world in group.world for n in words.get(world, (world,))))
    found = []
    for layout in group.layout:
        resolved = [r for r in (layout.resolve(world) for world in worlds) if r is not None]
        # A world that was written down is meant; one that follows the devices found may be too small for a layout.
        if not resolved and not words.keys() & set(group.world):
            raise UsageError(
                f"layout '{layout}' {where} fits no world of {', '.join(map(str, worlds))} devices: "
                "give a world that its other degrees divide"
            )
        found += resolved
    return list(dict.fromkeys(found))
