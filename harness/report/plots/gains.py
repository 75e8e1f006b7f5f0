"""What a precision or checkpointing buys: slopes between pairs of cells that differ in nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from harness.report.plots.style import INK, PALETTE, Picture, canvas, notes
from harness.report.words import number, per_second, scaled, shortened, slug

SAME = ["run", "model", "layout", "devices", "processes", "global_batch", "microbatches", "conditions", "throughput_unit"]
CHANGES = {"precision": "checkpointing", "checkpointing": "precision"}
"""What changes within a pair -> what else stays the same."""
FIGURES = ("throughput", "peak_memory_bytes")
KEY = ["model", "change", "other", "before", "after"]
"""What the pairs of one picture share."""
MOST_PAIRS = 24
LONGEST_LABEL = 54
"""Characters that have room beside a panel."""
CAPTION = (
    "Each line is one layout, from what it does without the technique (left) to what it does with it (right), on log scales: "
    "steeper means it changes more. Beside it, the factor. Left panel: up is faster. Right panel: down is leaner. Pairs of "
    "which one cell has no figure are drawn as a single dot, with the word for what the other ended in."
)


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """One row per pair: what they share, `change`, `before`, `after`, and columns of both cells ending in `_before`, `_after`.

    The first value of a family (the smallest in rank: fp32, no checkpointing) is held against each of the others.
    """
    columns = ["cell_id", "label", "word", "measured", "verified", "caveat_words", "device_memory_bytes", *FIGURES]
    found = []
    for what, other in CHANGES.items():
        first = "fp32" if what == "precision" else "none"
        base = table[table[what] == first]
        for value in dict.fromkeys(table.loc[table[what] != first, what]):
            both = base[[*SAME, other, *columns]].merge(
                table.loc[table[what] == value, [*SAME, other, *columns]], on=[*SAME, other], suffixes=("_before", "_after")
            )
            found.append(both.assign(change=what, other=both[other].astype("string"), before=first, after=value))
    return (
        pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["model", "change", "before", "after", "other"])
    )


def gains(table: pd.DataFrame) -> Iterator[Picture]:
    """One picture per model and change; `data` has its pairs."""
    for (model, change, other, before, after), cells in pairs(table).groupby(KEY, sort=False):
        beside = f" in {other}" if change == "checkpointing" else "" if other == "none" else f" with {other} checkpointing"
        words = [before, after]
        if change == "checkpointing":
            words = ["no checkpointing", f"{after} checkpointing"]
        ids = set(cells["cell_id_before"]) | set(cells["cell_id_after"])
        factors = {f"{name}_factor": cells[f"{name}_after"] / cells[f"{name}_before"] for name in FIGURES}
        data = cells.assign(**factors)
        yield Picture(
            name=f"gains-{slug(model)}-{slug(before)}-to-{slug(after)}-{slug(other)}",
            title=f"{words[1]} instead of {words[0]}, {model}{beside}",
            caption=CAPTION,
            notes=notes(table[table["cell_id"].isin(ids)]),
            data=data[[*SAME[:4], *(column for column in data if column.endswith(("_before", "_after", "_factor")))]],
            figure=_draw(data, words),
        )


def _draw(cells: pd.DataFrame, words: list[str]) -> Figure:
    change = np.log(cells["throughput_factor"].astype("float64")).abs()
    lost = cells.index[change.isna()][: MOST_PAIRS // 3]
    changed = change.dropna().sort_values(ascending=False, kind="stable").index[: MOST_PAIRS - len(lost)]
    chosen = cells.loc[[*changed, *lost]]
    rows = max(12, len(chosen))
    figure = canvas(10.4, 0.17 * rows + 0.3)
    panels = figure.subplots(1, 2, gridspec_kw={"wspace": 1.5})
    titles = (per_second(cells["throughput_unit"].iloc[0]), "peak memory")
    for axes, name, title in zip(panels, FIGURES, titles, strict=True):
        _panel(axes, chosen, name, title, words)
    if len(cells) > len(chosen):
        left_out = len(cells) - len(chosen)
        rest = f"The pairs that change most, and some that lost a cell; {left_out:,} more are in the picture's CSV file."
        panels[0].annotate(rest, (0, 0), (0, -34), xycoords="axes fraction", textcoords="offset points", fontsize=7, color=INK)
    return figure


def _panel(axes: Axes, cells: pd.DataFrame, name: str, title: str, words: list[str]) -> None:
    several = cells["run"].nunique() > 1
    runs = list(dict.fromkeys(cells["run"]))
    values = pd.concat([cells[f"{name}_before"], cells[f"{name}_after"]]).dropna()
    size, unit = scaled(values.max(), "bytes") if name.endswith("bytes") and len(values) else (1, "")
    labels = []
    for i, cell in enumerate(cells.to_dict("records")):
        colour = PALETTE[(runs.index(cell["run"]) if several else i) % len(PALETTE)]
        ends = [cell[f"{name}_{side}"] / size for side in ("before", "after")]
        there = [x for x in (0, 1) if pd.notna(ends[x])]
        solid = cell["verified_before"] and cell["verified_after"]
        axes.plot(there, [ends[x] for x in there], color=colour, marker="o", markersize=4, linestyle="-" if solid else ":")
        said = [f"×{number(ends[1] / ends[0])}"] if len(there) == 2 else []
        said += _gone(cell, there) + ([f"[{shortened(cell['run'], 16)}]"] if several else [])
        rest = "  ".join(said)
        label = f"{shortened(cell['label_after'], max(12, LONGEST_LABEL - len(rest)))}  {rest}"
        labels.append((ends[there[-1]] if there else np.nan, there, colour, label))
    axes.set_title(title + (f" ({unit})" if unit else ""))
    axes.set_xticks([0, 1], words)
    axes.set_xlim(-0.12, 1.12)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, (1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    axes.grid(False, axis="x")
    if len(values):
        axes.set_ylim(values.min() / size / 1.1, values.max() / size * 1.1)
    else:
        axes.set_yticks([])
    _beside(axes, labels)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _gone(cell: dict, there: list[int]) -> list[str]:
    """How the cells of a pair ended that have no verified figure."""
    sides = {"before": cell["word_before"], "after": cell["word_after"]}
    lost = {side: word or "no figure" for x, (side, word) in enumerate(sides.items()) if x not in there or word}
    if len(set(lost.values())) == 1 and len(lost) == 2:
        return [f"both {lost['before']}"]
    return [f"{word} {side}" for side, word in lost.items()]


def _beside(axes: Axes, labels: list[tuple[float, list[int], str, str]]) -> None:
    """Names to the right in the order of the lines' ends, spread evenly so that none covers another, tied by thin lines."""
    ranked = sorted(labels, key=lambda label: -label[0] if pd.notna(label[0]) else np.inf)
    for i, (end, there, colour, text) in enumerate(ranked):
        words = {"xycoords": "axes fraction", "va": "center", "fontsize": 7, "color": INK, "annotation_clip": False}
        place = (1.1, 1 - (i + 0.5) / len(ranked))
        axes.annotate(text, place, **words)
        if there:
            tie = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 3}
            ends = {"xycoords": "data", "textcoords": "axes fraction", "annotation_clip": False}
            axes.annotate("", (there[-1], end), (1.09, place[1]), arrowprops=tie, **ends)
