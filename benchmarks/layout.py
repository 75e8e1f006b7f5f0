"""The layout grammar: `axis=degree:implementation[knob=value,...]`, comma separated, pipeline first.

    >>> str(Layout.parse("dp=2:fsdp[reshard=false],tp=2"))
    'tp=2:dtensor,dp=2:fsdp[reshard=false]'

Pure data: imports no torch.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from benchmarks.errors import UsageError, unknown
from benchmarks.registry import AXES, names

DEFAULT_IMPLEMENTATION = {"dp": "ddp", "tp": "dtensor", "pp": "1f1b"}
AXIS_WORDS = {"dp": "data", "tp": "tensor", "pp": "pipeline"}

_AXIS = re.compile(r"(?P<axis>[a-z]+)=(?P<degree>[0-9]+(?:x[0-9]+)*|\*)(?::(?P<name>[a-z0-9-]+))?(?:\[(?P<knobs>[^\[\]]*)\])?")
_GRAMMAR = (
    "a layout is written 'single' or 'axis=degree:implementation[knob=value]', comma separated, for example 'tp=2,dp=2:fsdp'"
)

Knob = bool | int | float | str


def items(text: str) -> list[str]:
    """The parts between commas, but for those within brackets."""
    return re.split(r",(?![^\[]*\])", text)


class Axis(BaseModel):
    """One axis of a layout."""

    model_config = ConfigDict(frozen=True)

    axis: str
    """`pp`, `tp` or `dp`."""
    degrees: tuple[int, ...] | None
    """How many ways, outermost first; several for a nested axis such as `dp=2x2`; None is `*`, what is left of the world."""
    implementation: str
    """A file name in the axis's folder."""
    knobs: tuple[tuple[str, Knob], ...] = ()
    """Options of the implementation, sorted by name."""

    @property
    def degree(self) -> int:
        """The number of parts along this axis."""
        if self.degrees is None:
            raise UsageError(
                f"the degree of '{self}' is open: only a suite may write '*'; give a number, for example '{self.axis}=2'"
            )
        return math.prod(self.degrees)

    def __str__(self) -> str:
        degree = "*" if self.degrees is None else "x".join(map(str, self.degrees))
        knobs = ",".join(f"{name}={_written(value)}" for name, value in self.knobs)
        return f"{self.axis}={degree}:{self.implementation}" + (f"[{knobs}]" if knobs else "")


class Layout(BaseModel):
    """How a model is spread: one implementation and degree per axis. Serialises to and from its written form."""

    model_config = ConfigDict(frozen=True)

    axes: tuple[Axis, ...] = ()
    """Present axes, pipeline first, then tensor, then data. Empty is `single`."""

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read a written layout.

        Raises:
            UsageError: it does not follow the grammar, or names an unknown axis or implementation.
        """
        text = text.strip()
        if text == "single":
            return cls()
        found: dict[str, Axis] = {}
        for item in items(text):
            match = _AXIS.fullmatch(item.strip())
            if match is None:
                raise UsageError(f"cannot read {item.strip()!r} in layout {text!r}: {_GRAMMAR}")
            axis = match["axis"]
            if axis not in AXES:
                raise unknown("axis", axis, AXES, f"in layout {text!r}")
            if axis in found:
                raise UsageError(f"axis {axis!r} stands twice in layout {text!r}: give each axis once")
            degrees = None if match["degree"] == "*" else tuple(int(d) for d in match["degree"].split("x"))
            if degrees is not None and min(degrees) < 1:
                raise UsageError(f"the degree of {item.strip()!r} in layout {text!r} is below 1: give a positive number")
            name = match["name"] or DEFAULT_IMPLEMENTATION[axis]
            known = names(AXES[axis])
            if name not in known:
                raise unknown(f"{AXIS_WORDS[axis]} parallel implementation", name, known, f"in layout {text!r}")
            found[axis] = Axis(axis=axis, degrees=degrees, implementation=name, knobs=_knobs(match["knobs"] or "", text))
        present = (found[axis] for axis in AXES if axis in found)
        return cls(axes=tuple(a for a in present if a.degrees is None or math.prod(a.degrees) > 1))

    @classmethod
    def each(cls, text: str) -> list[str]:
        """A written layout for every implementation in the place of each implementation `*`, as in `tp=2:*,dp=4:*`."""
        found = [""]
        for item in items(text):
            axis, _, rest = item.strip().partition("=")
            degree, _, name = rest.partition(":")
            written = [f"{axis}={degree}:{each}" for each in names(AXES[axis])] if name == "*" and axis in AXES else [item]
            found = [",".join(filter(None, (before, one))) for before in found for one in written]
        return found

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"axes": cls.parse(value).axes} if isinstance(value, str) else value

    @model_serializer
    def _to_text(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return ",".join(map(str, self.axes)) or "single"

    def get(self, axis: str) -> Axis | None:
        """The entry of `axis`, or None where the model is not spread along it."""
        return next((a for a in self.axes if a.axis == axis), None)

    def degree(self, axis: str) -> int:
        """The number of parts along `axis`; 1 where absent."""
        found = self.get(axis)
        return found.degree if found else 1

    @property
    def devices(self) -> int:
        """How many devices the layout uses: the product of its degrees."""
        return math.prod(a.degree for a in self.axes)

    @property
    def family(self) -> str:
        """The layout without its degrees and knobs, for example `tp:hand+dp:ddp`: what scaling curves are drawn over."""
        return "+".join(f"{a.axis}:{a.implementation}" for a in self.axes) or "single"

    def resolve(self, world: int) -> Layout | None:
        """Fill the open degree (`*`) with what is left of `world` devices; None where that is no whole number.

        Raises:
            UsageError: more than one degree is open.
        """
        open_axes = [a for a in self.axes if a.degrees is None]
        if not open_axes:
            return self
        if len(open_axes) > 1:
            raise UsageError(f"layout '{self}' leaves {len(open_axes)} degrees open: '*' may stand once")
        fixed = math.prod(a.degree for a in self.axes if a.degrees is not None)
        if world % fixed:
            return None
        filled = (a if a.degrees is not None else a.model_copy(update={"degrees": (world // fixed,)}) for a in self.axes)
        return Layout(axes=tuple(a for a in filled if math.prod(a.degrees) > 1))


def _knobs(text: str, layout: str) -> tuple[tuple[str, Knob], ...]:
    knobs: dict[str, Knob] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = item.partition("=")
        if not separator or not name or not value:
            raise UsageError(f"cannot read knob {item!r} in layout {layout!r}: write knob=value, for example [reshard=false]")
        if name in knobs:
            raise UsageError(f"knob {name!r} stands twice in layout {layout!r}: give each knob once")
        knobs[name] = _value(value)
    return tuple(sorted(knobs.items()))


def _value(text: str) -> Knob:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _written(value: Knob) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
