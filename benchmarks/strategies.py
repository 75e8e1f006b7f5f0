"""From a written layout to strategy objects: knobs checked, processes counted."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

from benchmarks import registry
from benchmarks.contract import Strategy
from benchmarks.errors import UsageError, unknown
from benchmarks.layout import Axis, Knob, Layout

MESH_ORDER = ("pp", "dp", "tp")
"""Axes from the outermost to the innermost: who talks most sits closest."""


def strategy(axis: Axis) -> Strategy:
    """The strategy of one entry of a layout.

    Raises:
        UsageError: an unknown knob, or a value of another kind.
        ImportError: its framework is not installed.
    """
    kind: type[Strategy] = registry.load(registry.AXES[axis.axis], axis.implementation).Strategy
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, value in axis.knobs:
        if name not in fields:
            if not fields:
                raise UsageError(f"unknown knob {name!r} in '{axis}': {axis.implementation} has none; leave the brackets out")
            raise unknown("knob", name, fields, f"in '{axis}'")
        default, choices = fields[name].default, get_type_hints(kind)[name]
        if not _fits(value, choices):
            raise UsageError(f"knob {name!r} in '{axis}' is {value!r}: it takes {_words(choices)}, by default {default!r}")
    return kind(**dict(axis.knobs))


def _fits(value: Knob, choices: Any) -> bool:
    """Whether a written value is of a knob's type: a class, several joined by `|`, or a `Literal`."""
    if get_origin(choices) is Literal:
        return value in get_args(choices)
    return any(type(value) is kind or (kind is float and type(value) is int) for kind in get_args(choices) or (choices,))


def _words(choices: Any) -> str:
    if get_origin(choices) is Literal:
        return " or ".join(repr(choice) for choice in get_args(choices))
    return " or ".join(f"a {kind.__name__}" for kind in get_args(choices) or (choices,))


def strategies(layout: Layout) -> dict[str, Strategy]:
    """Axis -> strategy, in the order of the layout. Raises what `strategy` raises."""
    return {axis.axis: strategy(axis) for axis in layout.axes}


def process_degrees(layout: Layout) -> dict[str, int]:
    """Axis -> number of processes along it, for all axes in `MESH_ORDER`."""
    found = strategies(layout)
    return {axis: found[axis].processes(layout.degree(axis)) if axis in found else 1 for axis in MESH_ORDER}
