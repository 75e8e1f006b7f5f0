"""Rows of bars: one row per layout, one panel per technique, in each slot one bar per run.

Every cell that was asked for has its slot: a bar, or a hatched stub and the word for why there is none. Only where there
are more rows than anyone reads are the best alone drawn, and the rest is counted in a line below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.plots.style import FAINT, GRID, INK, canvas, more, pages
from harness.report.words import shortened

MOST_BARS = 32
"""Bars above each other in one picture."""
MOST_PAGES = 4
"""Pages that one picture may be cut into."""
INCHES_PER_BAR = 0.23


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A page of a picture, empty."""

    figure: Figure
    panels: dict[str, Axes]
    """By technique."""
    labels: list[str]
    runs: list[str]
    cells: pd.DataFrame
    """The rows of the table that have a slot here."""
    family: pd.DataFrame
    """All rows of the model and precision: pages of one picture share their axis."""
    devices: list[int]
    """All device counts of the table: each has one colour everywhere."""
    rest: str
    """What is said of the cells of the family that have no slot on any page; empty where all have one."""

    @property
    def thickness(self) -> float:
        """Height of a bar, where a row is 1."""
        return 0.78 / len(self.runs)

    @property
    def first(self) -> Axes:
        """The leftmost panel."""
        return next(iter(self.panels.values()))

    def slots(self) -> Iterator[tuple[Axes, float, dict]]:
        """Every cell with its panel and the height of its bar's middle."""
        for cell in self.cells.to_dict("records"):
            offset = (self.runs.index(cell["run"]) - (len(self.runs) - 1) / 2) * self.thickness
            yield self.panels[cell["technique"]], self.labels.index(cell["label"]) + offset, cell

    def missing(self, axes: Axes, y: float, word: str, reach: float) -> None:
        """A hatched stub with the word for a cell without a figure; `reach` is the right end of the axis."""
        axes.barh(y, reach * 0.04, height=self.thickness, color="none", edgecolor=FAINT, hatch="//////", linewidth=0.6)
        axes.text(reach * 0.05, y, word, va="center", fontsize=7, color=INK, style="italic")

    def finish(self, axis_label: str, reach: float) -> None:
        """Axes, titles, lines between device counts, and a word in slots that no cell asked for."""
        self.first.set_yticks(range(len(self.labels)), [shortened(label, 60) for label in self.labels], fontsize=7.5)
        self.first.set_ylim(len(self.labels) - 0.4, -0.6)
        devices = self.cells.groupby("label", sort=False)["devices"].first()
        for technique, axes in self.panels.items():
            axes.set_xlim(0, reach)
            axes.set_xlabel(axis_label if self.family["measured"].any() else "no cell has a figure")
            if not self.family["measured"].any():
                axes.set_xticks([])
            axes.grid(False, axis="y")
            axes.set_title(technique)
            asked = set(self.cells.loc[self.cells["technique"] == technique, "label"])
            for y, label in enumerate(self.labels):
                if label not in asked:
                    axes.text(reach * 0.01, y, "not in the suite", va="center", fontsize=6.5, color=FAINT)
                if y and devices[label] != devices[self.labels[y - 1]]:
                    axes.axhline(y - 0.5, color=GRID, linewidth=1.2)
            for side in ("top", "right", "bottom"):
                axes.spines[side].set_visible(False)
        if self.rest:
            place = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
            self.first.annotate(self.rest, (0, 0), (0, -50), fontsize=7, color=INK, style="italic", **place)


def grids(table: pd.DataFrame, best: str, *, ascending: bool) -> Iterator[tuple[str, str, Grid, int, int]]:
    """One grid for each model, precision and page: (model, precision, grid, page from 1, pages).

    Args:
        best: the column by which rows are chosen where there are too many, its smallest values first if `ascending`.
    """
    shared = {"runs": list(dict.fromkeys(table["run"])), "devices": sorted({int(d) for d in table["devices"]})}
    for (model, precision), family in table.groupby(["model", "precision"], sort=False):
        all_techniques = list(dict.fromkeys(family["technique"]))
        runs = len(shared["runs"])
        most = max(8, MOST_BARS // runs)
        cells = _chosen(family, most, best, ascending=ascending).sort_values("devices", kind="stable")
        rest = _rest(family, cells)
        cut = pages(list(dict.fromkeys(cells["label"])), most)
        for page, labels in enumerate(cut, start=1):
            here = cells[cells["label"].isin(labels)]
            techniques = [technique for technique in all_techniques if (here["technique"] == technique).any()]
            height = INCHES_PER_BAR * len(labels) * max(1, 0.8 * runs) + 0.1
            figure = canvas(3.4 * len(techniques) if len(techniques) > 1 else 5.0, height)
            axes = figure.subplots(1, len(techniques), sharey=True, squeeze=False)[0]
            panels = dict(zip(techniques, axes, strict=True))
            grid = Grid(figure=figure, panels=panels, labels=labels, cells=here, family=family, rest=rest, **shared)
            yield model, precision, grid, page, len(cut)


def _chosen(family: pd.DataFrame, most: int, best: str, *, ascending: bool) -> pd.DataFrame:
    """All cells, or those in the rows of the `most` best verified ones where all would take too many pages."""
    if family["label"].nunique() <= MOST_PAGES * most:
        return family
    ranked = family.sort_values(["verified", best], ascending=[False, ascending], kind="stable")
    return family[family["label"].isin(ranked["label"].drop_duplicates().head(most))]


def _rest(family: pd.DataFrame, drawn: pd.DataFrame) -> str:
    rest = family.drop(drawn.index)
    return f"Not drawn, as they are behind these: {more(rest)}" if len(rest) else ""
