"""The pictures of a report. A new one is a new file here, and its function named in `ALL`."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from harness.report.plots.memory import memory
from harness.report.plots.parity import parity
from harness.report.plots.scaling import scaling
from harness.report.plots.style import Picture, theme
from harness.report.plots.throughput import throughput

ALL = {"Throughput": throughput, "Peak memory": memory, "Scaling": scaling, "Parity": parity}
"""Heading in the page -> table of cells to pictures."""

__all__ = ["ALL", "Picture", "draw_all", "theme"]


def draw_all(table: pd.DataFrame) -> dict[str, list[Picture]]:
    """All pictures by heading, within the theme; headings without any are left out."""
    drawn = {heading: _distinct(draw(table)) for heading, draw in ALL.items()}
    return {heading: pictures for heading, pictures in drawn.items() if pictures}


def _distinct(pictures: list[Picture]) -> list[Picture]:
    """Pictures may differ in what a file's name does not hold, such as clipping or a bracket: number those."""
    names = [picture.name for picture in pictures]
    return [
        replace(picture, name=f"{name}-{names[:i].count(name) + 1}") if names.count(name) > 1 else picture
        for i, (name, picture) in enumerate(zip(names, pictures, strict=True))
    ]
