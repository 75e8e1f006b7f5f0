"""The pictures of a report. A new one is a new file here, and its function named in `ALL`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pandas as pd

from harness.report.plots.feasibility import feasibility
from harness.report.plots.frontier import frontier
from harness.report.plots.gains import gains
from harness.report.plots.memory import memory
from harness.report.plots.parity import parity
from harness.report.plots.scaling import scaling
from harness.report.plots.style import Picture, theme
from harness.report.plots.throughput import throughput

ALL = {
    "Throughput": throughput,
    "Peak memory": memory,
    "Memory against throughput": frontier,
    "Scaling": scaling,
    "What a technique buys": gains,
    "What fits": feasibility,
    "Parity": parity,
}
"""Heading in the page -> table of cells to pictures, drawn one by one as they are asked for."""

MANY_CELLS = 2000
MOST_PICTURES = {False: 12, True: 1}
"""Under one heading; by whether there are more than `MANY_CELLS`. A picture takes about half a second."""

__all__ = ["ALL", "Picture", "draw_all", "theme"]


def draw_all(table: pd.DataFrame) -> dict[str, list[Picture]]:
    """All pictures by heading, within the theme; headings without any are left out."""
    most = MOST_PICTURES[len(table) > MANY_CELLS]
    drawn = {heading: _distinct(_first(draw(table), most, len(table))) for heading, draw in ALL.items()}
    return {heading: pictures for heading, pictures in drawn.items() if pictures}


def _first(pictures: Iterator[Picture], most: int, cells: int) -> list[Picture]:
    """The first pictures; where there are more, the last of them says so."""
    found = list(islice(pictures, most))
    if len(found) == most and next(pictures, None):
        cut = (
            f"Of {cells:,} cells no more pictures of this kind are drawn; the table of all cells and summary.csv have them all."
        )
        found[-1] = replace(found[-1], notes=f"{found[-1].notes} {cut}".strip())
    return found


def _distinct(pictures: list[Picture]) -> list[Picture]:
    """Pictures may differ in what a file's name does not hold, such as clipping or a bracket: number those."""
    names = [picture.name for picture in pictures]
    return [
        replace(picture, name=f"{name}-{names[:i].count(name) + 1}") if names.count(name) > 1 else picture
        for i, (name, picture) in enumerate(zip(names, pictures, strict=True))
    ]
