"""Parity: how far each cell's loss, gradient norm and updates are from the single-device run's, against the tolerance."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from harness.report.plots.style import (
    FAINT,
    INK,
    NAMES,
    PALETTE,
    Picture,
    canvas,
    legend_above,
    more,
    notes,
    page_suffix,
    pages,
)
from harness.report.words import shortened, slug

QUANTITIES = {"loss": "loss", "gradient_norm": "gradient norm", "update": "parameter update"}
MARKS = ("quantity", "share", *(f"{name}_{what}" for name in QUANTITIES for what in ("error", "tolerance")))
MOST_ROWS, MOST_PAGES = 40, 4
LEAST, LARGEST = 1e-5, 1e3
TICKS = (1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1000)
"""Ends of the axis; what lies beyond is drawn at the end."""
CAPTION = (
    "Largest error against the single-device run, as a share of its tolerance: left of the line agrees, right of it is a "
    f"different training step. Errors below {LEAST:g} of the tolerance, 0 among them, are drawn at the left end, those beyond "
    f"{LARGEST:g} times it at the right end. A row without marks is of a cell that did not come so far; its word says why."
)


def shares(table: pd.DataFrame) -> pd.DataFrame:
    """Error divided by tolerance, one row per cell and quantity: columns of `table` and `quantity`, `share`."""
    parts = [
        table.assign(quantity=word, share=table[f"{name}_error"] / table[f"{name}_tolerance"])
        for name, word in QUANTITIES.items()
    ]
    return pd.concat(parts).dropna(subset="share")


def parity(table: pd.DataFrame) -> Iterator[Picture]:
    """One picture per model and page; `data` has the marks, and one row for each cell without any."""
    names = table["label"] + "  " + table["technique"]
    if table["run"].nunique() > 1:
        names += "  [" + table["run"] + "]"
    table = table.assign(row=names)
    for model, family in table.groupby("model", sort=False):
        cells, rest = _chosen(family)
        cut = pages(list(dict.fromkeys(cells["row"])), MOST_ROWS)
        for page, rows in enumerate(cut, start=1):
            title, name = page_suffix(page, len(cut))
            here = cells[cells["row"].isin(rows)]
            marks = shares(here)
            yield Picture(
                name=f"parity-{slug(model)}{name}",
                title=f"Parity of {model} with a single device{title}",
                caption=CAPTION + rest,
                notes=notes(here),
                data=pd.concat([marks, here[~here.index.isin(marks.index)]])[[*NAMES, *(c for c in MARKS if c in marks)]],
                figure=_draw(here, marks, rows),
            )


def _chosen(family: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """All cells, or those with the largest errors where all would take too many pages, and what is said of the rest."""
    if family["row"].nunique() <= MOST_PAGES * MOST_ROWS:
        return family, ""
    worst = shares(family).sort_values("share", ascending=False)["row"].drop_duplicates().head(MOST_ROWS)
    cells = family[family["row"].isin(worst)]
    rest = family.drop(cells.index)
    return cells, f" These have the largest errors; not drawn are {more(rest)}"


def _draw(cells: pd.DataFrame, marks: pd.DataFrame, rows: list[str]) -> Figure:
    figure = canvas(6.0, 0.19 * len(rows) + 0.1)
    axes = figure.subplots()
    places = {row: y for y, row in enumerate(rows)}
    words = list(QUANTITIES.values())
    aside = marks["quantity"].map(dict(zip(words, (-0.2, 0, 0.2), strict=True)))  # so that equal errors do not hide each other
    drawn = marks.assign(share=marks["share"].clip(LEAST, LARGEST), y=marks["row"].map(places) + aside)
    if len(drawn):
        looks = {"hue_order": words, "style_order": words, "palette": PALETTE[:3], "s": 26, "linewidth": 0.3}
        sns.scatterplot(drawn, x="share", y="y", hue="quantity", style="quantity", ax=axes, **looks)
        legend_above(axes, 3, *axes.get_legend_handles_labels())
    axes.set_xscale("log")
    axes.set_xlim(LEAST / 2, LARGEST * 1.6)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.axvline(1, color=INK, linewidth=1.2)
    for cell in cells.drop_duplicates("row").to_dict("records"):
        y, word = places[cell["row"]], cell["word"] or cell["verdict"].removeprefix("passed").strip(" ()") or "passed"
        axes.text(LARGEST * 2, y, word, va="center", fontsize=7, color=FAINT if cell["verified"] else INK, style="italic")
    axes.set_yticks(range(len(rows)), [shortened(row, 70) for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("error / tolerance (log scale); the line is the tolerance")
    axes.set_ylabel("")
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    return figure
