"""Throughput: one bar per layout with its 95 % interval, a panel per technique, a picture per model and precision."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import seaborn as sns
from matplotlib.patches import Patch

from harness.report.frame import THROUGHPUT
from harness.report.plots.grid import Grid, grids
from harness.report.plots.style import FAINT, INK, NAMES, PALETTE, Picture, flag, legend_above, notes, page_suffix
from harness.report.words import number, per_second, slug

FIGURES = (*THROUGHPUT, "throughput_unit")
CAPTION = (
    "Tokens, or images, of the global batch per second; longer is faster. Dark lines are 95 % intervals of the timed steps of "
    "one run. A hatched stub with a word stands where a cell has no figure, a hatched bar where it could not be held against "
    "one device. m: microbatches of a data rank."
)


def throughput(table: pd.DataFrame) -> Iterator[Picture]:
    """Pictures of `throughput`; `data` has the cells that have a slot."""
    for model, precision, grid, page, count in grids(table, "throughput", ascending=False):
        title, name = page_suffix(page, count)
        _draw(grid)
        yield Picture(
            name=f"throughput-{slug(model)}-{precision}{name}",
            title=f"Throughput of {model} in {precision}{title}",
            caption=CAPTION,
            notes=notes(grid.cells),
            data=grid.cells[[*NAMES, *FIGURES]],
            figure=grid.figure,
        )


def _draw(grid: Grid) -> None:
    colours = _colours(grid)
    ends = grid.family["throughput_high"].fillna(grid.family["throughput"])
    reach = 1.28 * ends.max() if ends.notna().any() else 1.0
    for axes, y, cell in grid.slots():
        value, low, high = (cell[f"throughput{end}"] for end in ("", "_low", "_high"))
        if not cell["measured"] or pd.isna(value):
            grid.missing(axes, y, cell["word"] or "no figure", reach)
            continue
        colour = colours[cell["run"] if len(grid.runs) > 1 else cell["devices"]]
        look = {"color": colour} if cell["verified"] else {"color": "none", "edgecolor": colour, "hatch": "//////"}
        axes.barh(y, value, height=grid.thickness, linewidth=0.6, **look)
        if pd.notna(low) and pd.notna(high):
            axes.errorbar(value, y, xerr=[[value - low], [high - value]], color=INK, elinewidth=1, capsize=1.5)
        end = high if pd.notna(high) else value
        words = " ".join(filter(None, (number(value), cell["word"], flag(cell))))
        axes.text(end + reach * 0.01, y, words, va="center", fontsize=7, color=INK)
    grid.finish(per_second(grid.family["throughput_unit"].iloc[0]), reach)
    shown = set(grid.cells["run"]) | set(grid.cells["devices"])
    handles = [Patch(color=colour, label=_word(group)) for group, colour in colours.items() if group in shown]
    handles.append(Patch(facecolor="none", edgecolor=FAINT, hatch="//////", label="no figure, or not comparable"))
    legend_above(grid.first, min(6, len(handles)), handles, [handle.get_label() for handle in handles])


def _colours(grid: Grid) -> dict[str | int, str]:
    """A colour for each run where there are several, else a shade for each device count."""
    if len(grid.runs) > 1:
        return dict(zip(grid.runs, PALETTE * len(grid.runs), strict=False))
    return dict(zip(grid.devices, sns.color_palette("crest", len(grid.devices)).as_hex(), strict=True))


def _word(group: str | int) -> str:
    return group if isinstance(group, str) else f"{group} device{'s' if group > 1 else ''}"
