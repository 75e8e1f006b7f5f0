"""What all pictures share: one theme, one way to say what is to be seen, one way to be saved.

Colours are seaborn's colour-blind-safe palette. Ink and paper are named colours that the page swaps for its own, so
that one SVG serves a light and a dark page.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubplotParams
from matplotlib.transforms import Bbox

from harness.report.words import CPU_SENTENCE, counted, plain

INK, FAINT, GRID, PAPER = "#1b1b1f", "#6c6c72", "#d9d9de", "#fefefe"
PAGE_COLOURS = {INK: "var(--ink)", FAINT: "var(--faint)", GRID: "var(--line)", PAPER: "var(--paper)"}
"""What the page's stylesheet replaces in an SVG."""
PALETTE = tuple(sns.color_palette("colorblind").as_hex())
DPI = 144
"""Of the PNG, and of the figure from the start: text is measured at the size at which it is drawn."""
NAMES = ("run", "cell_id", "model", "label", "technique", "devices", "status", "word", "verdict")
"""Columns that say which cell a mark is of and how it ended; the first ones of every picture's data."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")

_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One figure with its words."""

    name: str
    """File name without suffix."""
    title: str
    caption: str
    """What to see in it."""
    notes: str
    """What must be known to read it right: the caveats of its cells."""
    data: pd.DataFrame
    """What is drawn, one row per mark; `<name>.csv`."""
    figure: Figure

    def inline(self) -> str:
        """The drawing alone as an SVG element for a page, its ids and colours made the page's; no title, no caption."""
        buffer = io.StringIO()
        self.figure.savefig(buffer, format="svg", bbox_inches=_around(self.figure), metadata=_NO_METADATA)
        drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", _element(buffer.getvalue()))
        for colour, variable in PAGE_COLOURS.items():
            drawing = drawing.replace(colour, variable)
        return drawing

    def save(self, folder: Path) -> None:
        """Write `<name>.png` and `<name>.svg`, with title, caption and caveats around the drawing, and `<name>.csv`."""
        width, height = self.figure.get_size_inches()
        box = self.figure.get_tightbbox()
        longest = max(80, int((box.x1 - box.x0) * 17))
        words = [*textwrap.wrap(self.caption, longest), *textwrap.wrap(self.notes, longest)]
        looks = {"x": box.x0 / width, "ha": "left"}
        above = self.figure.text(
            y=(box.y1 + 0.12) / height, s=plain(self.title), va="bottom", fontsize=11, weight="bold", **looks
        )
        below = self.figure.text(y=(box.y0 - 0.12) / height, s="\n".join(words), va="top", fontsize=8, color=FAINT, **looks)
        around = _around(self.figure)
        self.figure.savefig(folder / f"{self.name}.png", bbox_inches=around, metadata={"Software": None})
        self.figure.savefig(folder / f"{self.name}.svg", bbox_inches=around, metadata=_NO_METADATA)
        self.data.to_csv(folder / f"{self.name}.csv", index=False)
        above.remove()
        below.remove()


def _around(figure: Figure) -> Bbox:
    """All that is drawn, with a margin, in inches. Given to every file: left to matplotlib, each would be drawn three times."""
    return figure.get_tightbbox().padded(0.12)


def _element(document: str) -> str:
    """The `<svg>` element of a file: without XML declaration, doctype and fixed size, so that it fits any page."""
    element = document[document.index("<svg") :]
    head, rest = element.split(">", 1)
    width = re.search(r'\bwidth="([0-9.]+)pt"', head)
    head = re.sub(r'\s(width|height)="[0-9.]+pt"', "", head)
    return f'{head} role="img" style="max-width: {float(width[1]) * 4 / 3:.0f}px">{rest}'


@contextmanager
def theme() -> Iterator[None]:
    """Draw and save within it: the settings act at both times."""
    settings = {
        **sns.axes_style("whitegrid"),
        **sns.plotting_context("notebook", font_scale=0.75),
        "text.parse_math": False,  # a "$" in a name is a "$"
        "svg.fonttype": "none",  # text stays text: searchable, small, and in the page's language of letters
        "svg.hashsalt": "hpbench",  # the same records give the same bytes
        "font.family": ["DejaVu Sans"],
        "axes.titlesize": 9,
        "axes.titlelocation": "left",
        "grid.linewidth": 0.8,
        "hatch.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 7.5,
        "legend.borderaxespad": 0,
        "legend.borderpad": 0,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    }
    with matplotlib.rc_context(settings):
        yield


def notes(cells: pd.DataFrame) -> str:
    """What must be known of a picture's cells: what a CPU run may be read for, how many have no figure, their caveats."""
    words = [word for text in cells["caveat_words"] for word in text.split()]
    sentences = [CPU_SENTENCE] if "cpu" in words else []
    ends = cells["word"][cells["word"] != ""]
    if len(ends):
        sentences.append(f"Without a verified figure: {counted(ends, len(cells))}.")
    if words:
        sentences.append(f"Caveats: {counted(words, len(cells))}.")
    return plain(" ".join(sentences))


def more(cells: pd.DataFrame) -> str:
    """Cells that a picture has no room for, counted by how they ended."""
    return f"{len(cells):,} more cells: {counted(cells['word'].replace('', 'verified'), len(cells))}."


def canvas(width: float, height: float) -> Figure:
    """A figure, in inches, that its axes fill: what stands around them is outside, and taken in when it is saved.

    So nothing is ever cut or squeezed, however long the names, and no layout has to be solved.
    """
    return Figure(figsize=(width, height), dpi=DPI, subplotpars=SubplotParams(left=0, right=1, bottom=0, top=1, wspace=0.08))


def legend_above(axes: Axes, columns: int, *handles_and_labels: list) -> None:
    """A legend above the title of axes that are as high as their figure."""
    place = (0, 1 + 0.36 / axes.figure.get_size_inches()[1])
    axes.legend(*handles_and_labels, loc="lower left", bbox_to_anchor=place, ncols=columns)


def pages(items: list[str], longest: int) -> list[list[str]]:
    """The items in pieces of nearly equal length, none longer than `longest`."""
    count = -(-len(items) // longest)
    ends = [round(i * len(items) / count) for i in range(count + 1)] if count else []
    return [items[start:end] for start, end in zip(ends, ends[1:], strict=False)]


def page_suffix(page: int, count: int) -> tuple[str, str]:
    """What the title and the file name of one of several pages end in."""
    return (f" ({page} of {count})", f"-{page}") if count > 1 else ("", "")
