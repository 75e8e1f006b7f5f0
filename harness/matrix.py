"""From a suite file to cells: every combination of a group's axes. Imports no torch.

A suite is a YAML file with `description`, `device`, `defaults` and `cells`. Each entry of `cells` is a group; it holds fields
of a cell, and where a field holds a list the group is multiplied by it:

    description: two ways to train on two devices
    device: cpu                          # the kind it is for; without it, any
    defaults: {model: llama-tiny, batch: {global: 8, sequence: 64}}
    cells:
      - layout: [single, "dp=*"]     # '*' is what is left of the world
        world: devices                   # 1, 2, 4, ... up to the devices found; `largest`, the last of them; or numbers
        precision: [fp32, bf16]
        exclude: [{layout: single, precision: bf16}]

With `batch: max` (or `batch: {global: max, ...}`) the largest microbatch that fits is searched for, and measured.

Multiplied are model, layout (over the worlds, where a degree is open), precision, checkpointing, offload, compile,
clip, seed and the three fields of `batch`. With `scaling: weak`, `batch.global` counts samples per device. A group with
a `device` of its own is left out on other kinds. A world that a layout's other degrees do not divide gives no cell; where
all worlds were written as numbers, one at least must do so. A cell that comes out twice stands once. `batch.sequence` is
left out of the cells of models that train on images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError, WrapValidator

from benchmarks import models, registry
from benchmarks.cell import STANDARD_LIBRARY, Batch, Cell, Checkpointing, Compile, Offload, Optimizer, Precision, Protocol
from benchmarks.data import check_source
from benchmarks.errors import UsageError, unknown
from benchmarks.layout import Layout
from benchmarks.registry import AXES
from benchmarks.site import Site
from harness import yaml_file
from harness.problems import usage_error
from harness.selection import excluded, parse_exclusion, select

MOST_CELLS = 10_000
"""A plan of more is asked about."""
SUITES = Path(__file__).parent.parent / "configs" / "suites"

T = TypeVar("T")
Overrides = Mapping[str, Any]
"""Dotted field -> value, as `--set` gives them."""


def _several(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _worlds(value: Any) -> Any:
    """Numbers, `devices` and `largest`, one or several."""
    for world in _several(value):
        if world not in ("devices", "largest") and not (str(world).isdigit() and int(world) > 0):
            raise UsageError(f"world is {world!r}: give 'devices', 'largest' or numbers of devices, for example [1, 2, 4]")
    return tuple(world if world in ("devices", "largest") else int(world) for world in _several(value))


def _each(value: Any) -> Any:
    """Layouts, those with an implementation `*` written out."""
    return tuple(one for v in _several(value) for one in (Layout.each(v) if isinstance(v, str) else [v]))


Several = Annotated[tuple[T, ...], BeforeValidator(_several), Field(min_length=1)]


Rows = Annotated[PositiveInt, WrapValidator(lambda value, validate: value if value == "max" else validate(value))]
"""A number, or `max`."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class BatchAxes(_Data):
    """`Batch`, each field with one or several values."""

    global_size: Several[Rows] = Field(alias="global", default=(Batch().global_size,))
    microbatches: Several[PositiveInt] = (Batch().microbatches,)
    sequence: Several[PositiveInt] = (Batch().sequence,)


class Group(_Data):
    """One product of axes. Fields are those of `Cell`, with one or several values."""

    model: Several[str] = (Cell().model,)
    layout: Annotated[tuple[Layout, ...], BeforeValidator(_each), Field(min_length=1)] = (Layout(),)
    """An implementation `*` is each of those in the axis's folder."""
    world: Annotated[tuple[int | str, ...], BeforeValidator(_worlds), Field(min_length=1)] = ("devices",)
    """World sizes for layouts with an open degree; `devices`: 1, 2, 4, ... up to those found; `largest`: the last of these."""
    precision: Several[Precision] = ("fp32",)
    checkpointing: Several[Checkpointing] = ("none",)
    offload: Several[Offload] = ("none",)
    compile: Several[Compile] = ("none",)
    clip: Several[Annotated[float, Field(ge=0)]] = (0.0,)
    seed: Several[int] = (0,)
    batch: BatchAxes = BatchAxes()
    scaling: Literal["strong", "weak"] = "strong"
    """`weak`: `batch.global` is multiplied by the number of devices."""
    optimizer: Optimizer = Optimizer()
    protocol: Protocol = Protocol()
    data: str = STANDARD_LIBRARY
    device: Literal["cpu", "cuda"] | None = None
    """The kind of device that the group is for; None: any."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Combinations to leave out; see `harness.selection`."""


class _File(_Data):
    description: str
    device: Literal["cpu", "cuda"] | None = None
    defaults: dict[str, Any] = {}
    cells: list[dict[str, Any]] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What is wanted, as it was written."""

    name: str
    """File name without its ending."""
    description: str
    groups: tuple[dict[str, Any], ...]
    """Groups with the suite's defaults filled in."""
    where: str
    """For messages: "in suite cpu.yaml"."""
    device: str | None = None
    """The kind of device that it is for; None: any."""


COMMAND_LINE = Suite(name="cell", description="one cell from the command line", groups=({},), where="on the command line")
"""A suite of one default cell, which arguments then change."""


def load(name: str) -> Suite:
    """Read a suite: a name in `configs/suites`, or the path of a YAML file.

    Raises:
        UsageError: there is no such suite, or it does not follow the form above.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else SUITES / f"{name}.yaml"
    if not path.is_file():
        raise unknown("suite", name, (f.stem for f in SUITES.glob("*.yaml")), "(or the path of a .yaml file)")
    where = f"in suite {path.name}"
    try:
        file = _File.model_validate(yaml_file.read(path))
    except ValidationError as error:
        raise usage_error(error, _File, where) from None
    groups = tuple(_merged(file.defaults, group) for group in file.cells)
    return Suite(name=path.stem, description=file.description, groups=groups, where=where, device=file.device)


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
    groups = [group for group in _groups(suite, overrides or {}) if group.device in (None, site.kind)]
    if most is not None:
        # Far too many are not even counted one by one.
        combinations = sum(_combinations(group, site, suite.where) for group in groups)
        if combinations > 10 * most:
            raise _too_many(combinations, most, suite.where)
    cells: dict[str, Cell] = {}
    for group in groups:
        for cell in _product(group, site, suite.where):
            cells.setdefault(cell.id, cell)
    if not cells:
        raise UsageError(f"no cell is left {suite.where}: 'exclude' and 'device' take all of them on {site}; leave some")
    selected = select(list(cells.values()), filter_text) if filter_text else list(cells.values())
    if most is not None and len(selected) > most:
        raise _too_many(len(selected), most, suite.where)
    return selected


def layouts(suite: Suite, overrides: Overrides | None = None) -> list[Layout]:
    """The layouts of a suite as written, open degrees included.

    Raises:
        UsageError: what `expand` raises, but for what only a site can tell.
    """
    return [layout for group in _groups(suite, overrides or {}) for layout in group.layout]


def implementations(layouts: Iterable[Layout]) -> tuple[str, ...]:
    """The modules that implement layouts, for a launcher to import once."""
    axes = {(axis.axis, axis.implementation) for layout in layouts for axis in layout.axes}
    return tuple(sorted(registry.module(AXES[axis], name) for axis, name in axes))


def worlds_up_to(count: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `count` devices."""
    return tuple(2**power for power in range(count.bit_length()))


def _groups(suite: Suite, overrides: Overrides) -> list[Group]:
    changes = _nested(overrides)
    _group(changes, COMMAND_LINE.where)  # by itself first, so that a mistake is looked for where it was made
    groups = [_group(_merged(written, changes), suite.where) for written in suite.groups]
    for group in groups:
        for name in group.model:
            models.check_name(name)
        check_source(group.data, max(group.batch.sequence))
    return groups


def _group(written: dict[str, Any], where: str) -> Group:
    try:
        return Group.model_validate(written)
    except ValidationError as error:
        raise usage_error(error, Group, where) from None


def _nested(overrides: Overrides) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field, value in overrides.items():
        for part in reversed(field.split(".")):
            value = {part: value}
        result = _merged(result, value)
    return result


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


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        if (key, value) == ("batch", "max"):
            value = {"global": "max"}
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result
