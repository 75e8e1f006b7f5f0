"""Memory against throughput: one mark per cell, and the cells that nothing beats in both, named.

A cell is on the Pareto front where no other cell of the same model and work is at least as fast with at most as much
memory, and better in one of the two. Verified cells alone can be on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.answers import front
from harness.report.frame import THROUGHPUT
from harness.report.plots.style import FAINT, INK, MARKERS, NAMES, PALETTE, PAPER, Picture, canvas, notes
from harness.report.words import amount, number, per_second, scaled, shortened, slug

FIGURES = ("peak_memory_bytes", *THROUGHPUT, "throughput_unit", "front")
MOST_NAMED, MOST_LISTED = 14, 14
CAPTION = (
    "Each mark is a cell; up is faster, left is leaner, lines through it are 95 % intervals. Numbered marks on the line are "
    "the Pareto front: nothing is both faster and leaner than they are, so the choice is among them. Hollow marks could not "
    "be held against one device and are not on it. Cells without a figure are listed beside."
)
KINDS = {"single": "single", "dp": "data parallel", "tp": "tensor parallel", "pp": "pipeline parallel", "hybrid": "hybrid"}


def frontier(table: pd.DataFrame) -> Iterator[Picture]:
    """One picture per model and work; `data` has all its cells, with their number on the front."""
    for (model, work), cells in table.groupby(["model", "work"], sort=False):
        if not (cells["measured"] & cells["peak_memory_bytes"].notna() & cells["throughput"].notna()).any():
            continue
        numbers = pd.Series(pd.NA, index=cells.index, dtype="Int64")
        for _, run in cells.groupby("run", sort=False):
            chosen = front(run)
            numbers[chosen.index] = range(1, len(chosen) + 1)
        cells = cells.assign(front=numbers)
        yield Picture(
            name=f"frontier-{slug(model)}-{slug(work)}",
            title=f"Memory against throughput of {model}, {work}",
            caption=CAPTION,
            notes=notes(cells),
            data=cells[[*NAMES, *FIGURES]],
            figure=_draw(cells),
        )


def _draw(cells: pd.DataFrame) -> Figure:
    figure = canvas(5.2, 4.2)
    axes = figure.subplots()
    drawn = cells[cells["measured"] & cells["peak_memory_bytes"].notna() & cells["throughput"].notna()]
    several = cells["run"].nunique() > 1
    groups = drawn["run"] if several else drawn["technique"]
    colours = dict(zip(dict.fromkeys(cells["run"] if several else cells["technique"]), PALETTE * len(cells), strict=False))
    kinds = drawn["axes"].where(~drawn["axes"].str.contains("+", regex=False), "hybrid")
    size, unit = scaled(drawn["peak_memory_bytes"].max(), "bytes")
    for (group, kind, verified), marks in drawn.groupby([groups, kinds, "verified"], sort=False):
        x, y = marks["peak_memory_bytes"] / size, marks["throughput"]
        low, high = marks["throughput_low"].fillna(y), marks["throughput_high"].fillna(y)
        colour = colours[group]
        axes.vlines(x, low, high, color=colour, linewidth=0.8, alpha=0.5)
        look = {"markerfacecolor": colour if verified else PAPER, "markeredgecolor": colour, "markersize": 5.5, "alpha": 0.9}
        axes.plot(x, y, linestyle="none", marker=MARKERS[list(KINDS).index(kind)], **look)
    names = []
    for run, marks in cells[cells["front"].notna()].groupby("run", sort=False):
        marks = marks.sort_values("front")
        axes.plot(
            marks["peak_memory_bytes"] / size,
            marks["throughput"],
            color=colours[run] if several else INK,
            linewidth=1,
            drawstyle="steps-post",
            zorder=1,
        )
        names += [f"Pareto front{f' of {run}' if several else ''}, leanest first"]
        for cell in marks.head(MOST_NAMED).to_dict("records"):
            place = (cell["peak_memory_bytes"] / size, cell["throughput"])
            axes.annotate(
                str(cell["front"]), place, (-4, 4), textcoords="offset points", ha="right", fontsize=7.5, weight="bold"
            )
            figures = f"{amount(cell['peak_memory_bytes'], 'bytes')}, {number(cell['throughput'])} {cell['throughput_unit']}"
            names.append(f"{cell['front']}  {_name(cell)}: {figures}")
        names += [f"and {len(marks) - MOST_NAMED:,} more"] if len(marks) > MOST_NAMED else []
    axes.set_xlabel(f"peak memory of the largest rank ({unit})")
    axes.set_ylabel(per_second(cells["throughput_unit"].iloc[0]))
    axes.set_xlim(0, 1.06 * drawn["peak_memory_bytes"].max() / size)
    axes.set_ylim(0, 1.1 * drawn["throughput_high"].fillna(drawn["throughput"]).max())
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _legend(axes, {group: colours[group] for group in dict.fromkeys(groups)}, list(dict.fromkeys(kinds)))
    without = cells.drop(drawn.index)
    lost = [
        " ".join([f"{cell['word'] or 'no figure'}: {_name(cell)}", *([f"[{cell['run']}]"] if several else [])])
        for cell in without.head(MOST_LISTED).to_dict("records")
    ]
    lost += [f"and {len(without) - MOST_LISTED:,} more"] if len(without) > MOST_LISTED else []
    text = "\n".join([*names, *([f"\nNo figure ({len(without):,})", *lost] if lost else [])])
    axes.text(1.03, 1, text, transform=axes.transAxes, va="top", fontsize=7, color=INK, linespacing=1.45)
    return figure


def _name(cell: dict) -> str:
    return f"{shortened(cell['label'], 44)} in {cell['technique']}"


def _legend(axes: Axes, colours: dict[str, str], kinds: list[str]) -> None:
    """Colours and shapes below the axes, as the room beside them is for names."""
    dots = [Line2D([], [], color=c, marker="o", linestyle="none", markersize=5.5, label=name) for name, c in colours.items()]
    looks = {"color": FAINT, "linestyle": "none", "markersize": 5.5}
    shapes = [Line2D([], [], marker=MARKERS[list(KINDS).index(kind)], label=KINDS[kind], **looks) for kind in kinds]
    handles = [*dots, *shapes]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=min(4, len(handles)))
