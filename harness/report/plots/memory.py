"""Peak memory of the largest rank: one bar per layout, stacked by what was live at the peak."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.frame import ANATOMY
from harness.report.plots.grid import Grid, grids
from harness.report.plots.style import FAINT, INK, NAMES, PALETTE, PAPER, Picture, flag, legend_above, notes, page_suffix
from harness.report.words import amount, number, scaled, slug

CAPTION = (
    "Memory of the rank that needs most, at the moment it needs most (allocated on CUDA, tracked tensors on CPU), by what it "
    "holds; shorter is leaner. A hatched stub with a word stands where a cell has no figure; a striped bar is of a cell that "
    "could not be held against one device. The dashed line is what the device holds (on CPU: the machine, which all ranks "
    "share); where it is far off, the axis says so. m: microbatches of a data rank."
)
FARTHEST_LIMIT = 2.5
"""Times the longest bar: a limit farther off would leave the bars too short to read, and is written below the axis."""
LIMIT = {"color": PALETTE[3], "linestyle": "--", "linewidth": 1.4}
FIGURES = ("peak_memory_bytes", *(f"memory_{part}_bytes" for part in ANATOMY), "device_memory_bytes")
COLOURS = {**dict(zip(ANATOMY, PALETTE, strict=False)), "other": PALETTE[7]}


def memory(table: pd.DataFrame) -> Iterator[Picture]:
    """Pictures of `peak_memory_bytes`; `data` has the cells that have a slot."""
    for model, precision, grid, page, count in grids(table, "peak_memory_bytes", ascending=True):
        title, name = page_suffix(page, count)
        _draw(grid)
        yield Picture(
            name=f"memory-{slug(model)}-{precision}{name}",
            title=f"Peak memory of {model} in {precision}{title}",
            caption=CAPTION,
            notes=notes(grid.cells),
            data=grid.cells[
                [*NAMES, "peak_memory_bytes", *(f"memory_{part}_bytes" for part in ANATOMY), "device_memory_bytes"]
            ],
            figure=grid.figure,
        )


def _draw(grid: Grid) -> None:
    peaks = grid.family["peak_memory_bytes"]
    size, unit = scaled(peaks.max(), "bytes") if peaks.notna().any() else (1, "bytes")
    limits = sorted(grid.family["device_memory_bytes"].dropna().unique())
    near = [limit for limit in limits if peaks.notna().any() and limit <= FARTHEST_LIMIT * peaks.max()]
    reach = 1.28 * max([peaks.max(), *near]) / size if peaks.notna().any() else 1.0
    for axes, y, cell in grid.slots():
        peak = cell["peak_memory_bytes"]
        if not cell["measured"] or pd.isna(peak):
            grid.missing(axes, y, cell["word"] or "not probed", reach)
            continue
        left = 0.0
        for part in ANATOMY:
            value = cell[f"memory_{part}_bytes"] / size
            if value > 0:
                axes.barh(y, value, left=left, height=grid.thickness, color=COLOURS[part], linewidth=0)
                left += value
        if left < 0.999 * peak / size:
            axes.barh(y, peak / size - left, left=left, height=grid.thickness, color="none", edgecolor=FAINT, linewidth=0.6)
        if not cell["verified"]:
            axes.barh(y, peak / size, height=grid.thickness, color="none", edgecolor=PAPER, hatch="//////", linewidth=0)
        run = cell["run"] if len(grid.runs) > 1 else ""
        words = " ".join(filter(None, (number(peak / size), cell["word"], flag(cell), run)))
        axes.text(max(left, peak / size) + reach * 0.01, y, words, va="center", fontsize=7, color=INK)
    far = [amount(limit, "bytes") for limit in limits if limit not in near]
    words = f"peak memory of the largest rank ({unit})"
    grid.finish(words + f"\nlimit {' and '.join(far)}, off the axis" * bool(far), reach)
    for axes in grid.panels.values():
        for limit in near:
            axes.axvline(limit / size, **LIMIT)
    handles = [Patch(color=COLOURS[part], label=part.replace("_", " ")) for part in ANATOMY]
    handles.append(Patch(facecolor="none", edgecolor=FAINT, label="not told apart"))
    handles += (
        [Line2D([], [], label=f"limit {' and '.join(amount(limit, 'bytes') for limit in near)}", **LIMIT)] if near else []
    )
    legend_above(grid.first, 4, handles, [handle.get_label() for handle in handles])
