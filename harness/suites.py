"""A suite file: what is wanted, as it is written. Imports no torch.

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

from collections.abc import Iterable, Mapping
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
from harness import yaml_file
from harness.problems import usage_error

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
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


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


def layouts(suite: Suite, overrides: Overrides | None = None) -> list[Layout]:
    """The layouts of a suite as written, open degrees included.

    Raises:
        UsageError: what `expand` raises, but for what only a site can tell.
    """
    return [layout for group in groups(suite, overrides or {}) for layout in group.layout]


def implementations(layouts: Iterable[Layout]) -> tuple[str, ...]:
    """The modules that implement layouts, for a launcher to import once."""
    axes = {(axis.axis, axis.implementation) for layout in layouts for axis in layout.axes}
    return tuple(sorted(registry.module(AXES[axis], name) for axis, name in axes))


def groups(suite: Suite, overrides: Overrides) -> list[Group]:
    """The groups of a suite, with `overrides` in the place of what each says.

    Raises:
        UsageError: an unknown key or name, or a value of another kind.
    """
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


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        if (key, value) == ("batch", "max"):
            value = {"global": "max"}
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result
