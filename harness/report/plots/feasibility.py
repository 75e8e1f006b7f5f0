"""What fits: a map of layouts and models, in each square what became of the cells there, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from harness.report.plots.style import GRID, INK, NAMES, PALETTE, PAPER, Picture, canvas, more, notes, page_suffix, pages
from harness.report.words import amount, plain, shortened, slug

MOST_ROWS, MOST_PAGES, MOST_COLUMNS, MOST_REASONS = 36, 3, 8, 12
CAPTION = (
    "Rows are layouts, columns are models. A square says how much the largest rank needed at its peak where a cell fits, in "
    "which phase it failed where it does not, and by a number the reason, which is written below. Where several cells (other "
    "batches or settings) share a square, it says how many of them ended like the best."
)
ENDS = {
    "verified": ("fits", PALETTE[2], ""),
    "not comparable": ("fits, not comparable", PALETTE[2], "////"),
    "out of memory": ("out of memory", PALETTE[3], ""),
    "skipped": ("illegal here", PALETTE[7], ""),
    "other": ("failed otherwise", PALETTE[1], "xx"),
}
"""Way to end, the best first -> its words in the legend, colour and hatch."""


def feasibility(table: pd.DataFrame) -> Iterator[Picture]:
    """One picture per technique, page of models and page of layouts; `data` has its cells with the `end` that is drawn."""
    ends = table["word"].replace("", "verified")
    table = table.assign(end=ends.where(ends.isin(list(ENDS)), "other"))
    if table["run"].nunique() > 1:
        table["model"] = table["model"] + " [" + table["run"] + "]"
    for technique, family in table.groupby("technique", sort=False):
        for columns in pages(list(dict.fromkeys(family["model"])), MOST_COLUMNS):
            cells = family[family["model"].isin(columns)].sort_values("devices", kind="stable")
            layouts = list(dict.fromkeys(cells["layout"]))
            kept = layouts if len(layouts) <= MOST_PAGES * MOST_ROWS else _telling(cells)
            cut = pages(kept, MOST_ROWS)
            rest = cells[~cells["layout"].isin(kept)]
            for page, rows in enumerate(cut, start=1):
                title, name = page_suffix(page, len(cut))
                here = cells[cells["layout"].isin(rows)]
                yield Picture(
                    name=f"feasibility-{slug(technique)}-{slug(columns[0])}{name}",
                    title=f"What fits in {technique}{title}",
                    caption=CAPTION + (f" Not drawn are {more(rest)}" if len(rest) else ""),
                    notes=notes(here),
                    data=here[[*NAMES, "layout", "end", "peak_memory_bytes", "phase", "reason"]],
                    figure=_draw(here, rows, columns),
                )


def _telling(cells: pd.DataFrame) -> list[str]:
    """The layouts that fail soonest or most often: where every cell fits, a map says nothing."""
    failed = (~cells["measured"]).groupby(cells["layout"], sort=False).mean()
    return list(failed.sort_values(ascending=False, kind="stable").index[:MOST_ROWS])


def _draw(cells: pd.DataFrame, rows: list[str], columns: list[str]) -> Figure:
    figure = canvas(1.9 * len(columns), 0.24 * len(rows))
    axes = figure.subplots()
    reasons: dict[str, int] = {}
    squares = {key: group for key, group in cells.groupby(["layout", "model"], sort=False)}
    for y, layout in enumerate(rows):
        for x, model in enumerate(columns):
            _square(axes, x, y, squares.get((layout, model)), reasons)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([x + 0.5 for x in range(len(columns))], [shortened(name, 24) for name in columns], fontsize=7.5)
    axes.xaxis.tick_top()
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [shortened(layout, 60) for layout in rows], fontsize=7.5)
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    there = set(cells["end"])
    handles = [
        Patch(facecolor=colour, alpha=0.55, hatch=hatch, edgecolor=PAPER, label=word)
        for end, (word, colour, hatch) in ENDS.items()
        if end in there
    ]
    place = (0, -0.12 / figure.get_size_inches()[1])
    per_row = min(len(handles), 1 + len(columns))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=place, ncols=max(1, per_row))
    lines = [f"{number}  {shortened(reason, 110)}" for reason, number in list(reasons.items())[:MOST_REASONS]]
    lines += [f"and {len(reasons) - MOST_REASONS} more reasons, in the table of cells"] if len(reasons) > MOST_REASONS else []
    under = (0, -20 - 15 * -(-len(handles) // per_row))
    below = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top", "annotation_clip": False}
    axes.annotate("\n".join(lines), (0, 0), under, fontsize=7, color=INK, linespacing=1.4, **below)
    return figure


def _square(axes: Axes, x: int, y: int, cells: pd.DataFrame | None, reasons: dict[str, int]) -> None:
    if cells is None:
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor="none", edgecolor=GRID, linewidth=0.6))
        return
    best = min(cells["end"], key=list(ENDS).index)
    like = cells[cells["end"] == best]
    _, colour, hatch = ENDS[best]
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, alpha=0.45, edgecolor=PAPER, linewidth=1.2, hatch=hatch))
    words = _words(best, like)
    if best != "verified":
        for reason in dict.fromkeys(plain(r) for r in like["reason"].dropna()):
            reasons.setdefault(reason, len(reasons) + 1)
        first = like["reason"].dropna()
        words += f" ({reasons[plain(first.iloc[0])]})" if len(first) else ""
    if len(cells) > 1:
        words += f" {len(like)}/{len(cells)}"
    axes.text(x + 0.5, y + 0.5, words, ha="center", va="center", fontsize=7, color=INK)


def _words(end: str, cells: pd.DataFrame) -> str:
    if end in ("verified", "not comparable"):
        peak = cells["peak_memory_bytes"].min()
        return amount(peak, "bytes") if pd.notna(peak) else "fits"
    phase = next(iter(cells["phase"].dropna()), None)
    word = {"out of memory": "OOM", "skipped": "illegal"}.get(end) or cells["word"].iloc[0]
    return f"{word}, {phase}" if phase else word
