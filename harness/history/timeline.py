"""Pictures of a history: one for each metric and machine, a panel for each cell, with marks where its level changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.history.judge import Series
from harness.history.text import UNITS
from harness.report.plots.style import FAINT, INK, PALETTE, Picture, canvas, page_suffix, pages, theme
from harness.report.words import scaled, slug

PANELS = 12
"""In one picture."""
PANEL_INCHES, GAP_INCHES = 0.9, 0.45
COLOURS = {"regressed": PALETTE[3], "improved": PALETTE[2], "suspect": PALETTE[1]}


def draw(series: Sequence[Series], folder: Path) -> list[Path]:
    """Draw all series into `folder`; returns the PNG files, beside each of which lie an SVG and the CSV of what is drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with theme():
        for fingerprint in dict.fromkeys(s.fingerprint for s in series):
            for metric in dict.fromkeys(s.metric for s in series):
                chosen = {s.cell: s for s in series if (s.fingerprint, s.metric) == (fingerprint, metric) and s.values}
                parts = pages(list(chosen), PANELS)
                for number, cells in enumerate(parts, start=1):
                    picture = _picture([chosen[cell] for cell in cells], *page_suffix(number, len(parts)))
                    picture.save(folder)
                    files.append(folder / f"{picture.name}.png")
    return files


def _picture(series: Sequence[Series], title_suffix: str, name_suffix: str) -> Picture:
    height = len(series) * (PANEL_INCHES + GAP_INCHES)
    figure = canvas(8, height)
    size, unit = scaled(max(s.values[-1] for s in series), UNITS[series[0].metric])
    for number, s in enumerate(series):
        bottom = 1 - ((number + 1) * (PANEL_INCHES + GAP_INCHES) - GAP_INCHES) / height
        axes = figure.add_axes((0, bottom, 1, PANEL_INCHES / height))
        nights = range(len(s.values))
        axes.plot(nights, [value / size for value in s.values], ".-", color=INK, linewidth=0.8, markersize=3)
        for change in s.changes:
            axes.axvline(change.index, color=COLOURS[change.word], linewidth=1.2)
            text = f"{change.word} {change.point.change:+.1%} at {change.commit[:12]}"
            _mark(axes, change.index, len(s.values), text, COLOURS[change.word])
        for index, entry in s.accepted:
            axes.axvline(index, color=FAINT, linewidth=1.2, linestyle="--")
            _mark(axes, index, len(s.values), f"accepted at {entry.commit[:12]}", FAINT)
        axes.set_title(f"{s.name} [{s.cell}]")
        axes.set_ylabel(unit)
    axes.set_xlabel("night")
    metric, fingerprint = series[0].metric, series[0].fingerprint
    return Picture(
        name=slug(f"history-{fingerprint}-{metric}{name_suffix}"),
        title=f"{metric} of machine {fingerprint}, night by night{title_suffix}",
        caption="A line across a panel is where the level of a cell changed; beside it: by how much, and since which commit.",
        notes="Each point is the median of that night's runs. Accepted changes are dashed; what came before is not judged.",
        data=_data(series),
        figure=figure,
    )


def _mark(axes, index: int, count: int, text: str, colour: str) -> None:
    late = index > count / 2
    axes.annotate(
        text,
        (index, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-3 if late else 3, -2),
        textcoords="offset points",
        ha="right" if late else "left",
        va="top",
        fontsize=7,
        color=colour,
    )


def _data(series: Sequence[Series]) -> pd.DataFrame:
    rows = []
    for s in series:
        marks = {change.index: change.word for change in s.changes} | {index: "accepted" for index, _ in s.accepted}
        for index, (night, value) in enumerate(zip(s.nights, s.values, strict=True)):
            about = {"machine": s.fingerprint, "cell_id": s.cell, "name": s.name, "metric": s.metric}
            rows.append({**about, "time": night.time, "commit": night.commit, "value": value, "mark": marks.get(index, "")})
    return pd.DataFrame(rows)
