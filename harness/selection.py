"""Picks cells by what they are: `--filter` on the command line, `exclude` in a suite. Imports no torch.

A condition is `field=value`. A field is written as in a suite, nested ones with a dot: `precision=bf16`,
`batch.microbatches=2`, `devices=4`. `*` stands for any characters. For `layout` it is enough that the value occurs
in the written layout; in `--filter` such a value may stand by itself:

    --filter 'model=llama-*,dp=2'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.cell import Cell
from benchmarks.errors import UsageError, unknown
from benchmarks.layout import items
from benchmarks.registry import AXES

Condition = tuple[str, str]
"""Field and the value that it must have, both as written."""


def written_fields(cell: Cell) -> dict[str, str]:
    """Every field of a cell as it is written in a suite, nested ones with a dot."""
    return {field: _text(value) for field, value in _flat(cell.model_dump(mode="json", by_alias=True))}


def parse_filter(text: str) -> list[Condition]:
    """Read the argument of `--filter`.

    Raises:
        UsageError: it names an unknown field.
    """
    conditions = []
    for item in filter(None, (part.strip() for part in items(text))):
        field, separator, value = item.partition("=")
        if not separator or "[" in field or field in AXES:
            conditions.append(("layout", item))
        else:
            conditions.append((_known(field, "in --filter"), value))
    return conditions


def parse_exclusion(written: Mapping[str, Any], where: str) -> list[list[Condition]]:
    """Read one entry of a suite's `exclude`; a list of values means any of them.

    Returns one list of alternatives per field.

    Raises:
        UsageError: it names an unknown field.
    """
    alternatives = []
    for field, values in _flat(written):
        _known(field, f"{where} of 'exclude'")
        alternatives.append([(field, _text(v)) for v in (values if isinstance(values, list) else [values])])
    return alternatives


def matches(cell: Cell, conditions: Iterable[Condition]) -> bool:
    """Whether all conditions hold for a cell."""
    fields = written_fields(cell)
    return all(_holds(field, value, fields[field]) for field, value in conditions)


def excluded(cell: Cell, exclusion: Iterable[list[Condition]]) -> bool:
    """Whether for every field of an exclusion one of its values holds."""
    return all(any(matches(cell, [condition]) for condition in values) for values in exclusion)


def select(cells: list[Cell], filter_text: str) -> list[Cell]:
    """The cells that a `--filter` leaves.

    Raises:
        UsageError: it leaves none.
    """
    conditions = parse_filter(filter_text)
    left = [cell for cell in cells if matches(cell, conditions)]
    if not left:
        raise UsageError(
            f"--filter {filter_text!r} leaves none of {len(cells)} cells: see them with 'hpbench plan', ask for some of them"
        )
    return left


def _holds(field: str, wanted: str, found: str) -> bool:
    pattern = ".*".join(map(re.escape, wanted.split("*")))
    if field == "layout" and found != wanted:
        return wanted != "single" and re.search(pattern, found) is not None
    return re.fullmatch(pattern, found) is not None or _same_number(wanted, found)


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _known(field: str, where: str) -> str:
    known = written_fields(Cell())
    if field not in known:
        raise unknown("field", field, known, where)
    return field


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
