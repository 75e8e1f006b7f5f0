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
from functools import cached_property
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
WORDS = "words-around"
"""What the ids of those elements of an SVG begin with that a page leaves out, as it has them as text of its own."""
MARGIN = 0.12
"""Around all that is drawn, in inches."""
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
        drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", self._files.inline)
        for colour, variable in PAGE_COLOURS.items():
            drawing = drawing.replace(colour, variable)
        return drawing

    def save(self, folder: Path) -> None:
        """Write `<name>.png` and `<name>.svg`, with title, caption and caveats around the drawing, and `<name>.csv`."""
        (folder / f"{self.name}.png").write_bytes(self._files.png)
        (folder / f"{self.name}.svg").write_text(self._files.svg, encoding="utf-8")
        self.data.to_csv(folder / f"{self.name}.csv", index=False)

    @cached_property
    def _files(self) -> _Files:
        """Drawn once for each format, which is what most of a report's time goes into."""
        width, height = self.figure.get_size_inches()
        box = self.figure.get_tightbbox()
        longest = max(80, int((box.x1 - box.x0) * 17))
        words = [*textwrap.wrap(self.caption, longest), *textwrap.wrap(self.notes, longest)]
        looks = {"x": box.x0 / width, "ha": "left"}
        title = {"y": (box.y1 + 0.12) / height, "s": plain(self.title), "va": "bottom", "fontsize": 11, "weight": "bold"}
        below = {"y": (box.y0 - 0.12) / height, "s": "\n".join(words), "va": "top", "fontsize": 8, "color": FAINT}
        around = [self.figure.text(**text, **looks, gid=f"{WORDS}{i}") for i, text in enumerate((title, below))]
        # Given to every file: left to matplotlib, each would be drawn three times.
        outer, inner = self.figure.get_tightbbox().padded(MARGIN), box.padded(MARGIN)
        png, svg = io.BytesIO(), io.StringIO()
        self.figure.savefig(png, format="png", bbox_inches=outer, metadata={"Software": None})
        self.figure.savefig(svg, format="svg", bbox_inches=outer, metadata=_NO_METADATA)
        for text in around:
            text.remove()
        return _Files(png=png.getvalue(), svg=svg.getvalue(), inline=_without_words(svg.getvalue(), outer, inner))


@dataclass(frozen=True, kw_only=True)
class _Files:
    """What is written of a picture; `inline` is the SVG element without the words around the drawing."""

    png: bytes
    svg: str
    inline: str


def _without_words(document: str, outer: Bbox, inner: Bbox) -> str:
    """The `<svg>` element of a file, cut to the drawing: without words, XML declaration, doctype and fixed size, so that it
    fits any page.

    Args:
        outer: what the file shows, in inches.
        inner: what is kept of it.
    """
    element = re.sub(rf'<g id="{WORDS}.">.*?</g>', "", document[document.index("<svg") :], flags=re.DOTALL)
    head, rest = element.split(">", 1)
    corner = ((inner.x0 - outer.x0), (outer.y1 - inner.y1))
    box = " ".join(f"{72 * length:.4f}" for length in (*corner, inner.width, inner.height))
    head = re.sub(r'\s(width|height|viewBox)="[^"]*"', "", head)
    return f'{head} viewBox="{box}" role="img" style="max-width: {96 * inner.width:.0f}px">{rest}'


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
    if "dtypes" in words:
        sentences.append("(dtypes): keeps something in another dtype than its neighbours; see the page's caveats.")
    if words:
        sentences.append(f"Caveats: {counted(words, len(cells))}.")
    return plain(" ".join(sentences))


def flag(cell: pd.Series) -> str:
    """What stands beside the figure of a cell that keeps something in another dtype than its neighbours."""
    return "(dtypes)" if "dtypes" in cell["caveat_words"].split() else ""


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
