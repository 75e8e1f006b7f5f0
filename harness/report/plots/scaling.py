"""Scaling: throughput and efficiency over 1, 2, 4, ... devices, one line per layout family, with the ideal line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from harness.report.curves import curves, fitted
from harness.report.frame import THROUGHPUT
from harness.report.plots.style import FAINT, INK, MARKERS, PALETTE, Picture, canvas, notes, page_suffix, pages
from harness.report.words import number, per_second, shortened, slug

LINES_PER_PANEL, PANELS_PER_PICTURE = 8, 3
CAPTIONS = {
    "strong": "Strong scaling: the global batch stays the same. ",
    "weak": "Weak scaling: the batch per device stays the same. ",
}
CAPTION = (
    "Above, tokens or images per second on a log scale; below, throughput per device as a share of the base's, which is the "
    "single device or else the smallest count that has a figure. Bands are 95 % intervals of the timed steps of one run. The "
    "dashed line is ideal: n devices are n times as fast; dotted lines are the fit. A cross at the bottom is a cell without a "
    "verified figure. s: fitted serial fraction, the share of the work that does not spread."
)
NAMES = ("run", "cell_id", "model", "technique", "line", "series", "layout", "kind", "batch", "microbatches", "devices")
FIGURES = (*THROUGHPUT, "throughput_unit", "base_layout", "base_devices", "speedup",
           "efficiency", "serial_fraction")  # fmt: skip


def scaling(table: pd.DataFrame) -> Iterator[Picture]:
    """Pictures of all curves of two device counts and more; `data` has the points."""
    points = _worth_drawing(curves(table), table)
    named_runs = table["run"].nunique() > 1
    points, table = points.assign(line=_line(points, named_runs)), table.assign(line=_line(table, named_runs))
    for key, group in points.groupby(["model", "technique", "conditions", "kind", "batch"], sort=False):
        model, technique, conditions, kind, batch = key
        lost = _without_figure(table, *key)
        sequence = f"×{json.loads(conditions)['sequence']}" if group["throughput_unit"].iloc[0] == "tokens/s" else ""
        work = f"batch {number(batch)}{sequence}" + (" per device" if kind == "weak" else "")
        panels = [(axes, part) for axes, lines in _by_axes(group) for part in pages(lines, LINES_PER_PANEL)]
        cut = [panels[i : i + PANELS_PER_PICTURE] for i in range(0, len(panels), PANELS_PER_PICTURE)]
        for page, here in enumerate(cut, start=1):
            title, name = page_suffix(page, len(cut))
            drawn = group[group["line"].isin([line for _, lines in here for line in lines])]
            yield Picture(
                name=f"scaling-{slug(model)}-{slug(technique)}-{kind}-{slug(work)}{name}",
                title=f"{kind.capitalize()} scaling of {model} in {technique}, {work}{title}",
                caption=CAPTIONS[kind] + CAPTION,
                notes=notes(pd.concat([table[table["cell_id"].isin(drawn["cell_id"])], lost])),
                data=drawn[[*NAMES, *FIGURES]],
                figure=_draw(here, drawn, lost),
            )


def _without_figure(table: pd.DataFrame, model: str, technique: str, conditions: str, kind: str, batch: float) -> pd.DataFrame:
    """Cells that would be points of these curves, had they a verified figure."""
    wanted = (table["model"] == model) & (table["technique"] == technique) & (table["conditions"] == conditions)
    batches = table["global_batch"] / (table["devices"] if kind == "weak" else 1)
    return table[wanted & (batches.astype("float64") == batch) & ~table["verified"]]


def _worth_drawing(points: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Without layouts that were asked for on one device count alone beside the base, unless there are no others.

    A matrix has dozens of such hybrids: their lines of two points say no more than their bars, and hide the curves.
    """
    key = ["run", "model", "technique", "conditions", "series", "microbatches"]
    asked = table.groupby(key)["devices"].nunique()
    several = pd.Index(points[key].itertuples(index=False, name=None)).isin(asked[asked > 1].index) if len(points) else []
    return points[several] if any(several) else points


def _line(points: pd.DataFrame, named_runs: bool) -> pd.Series:
    """What is one line: series, microbatches and, where there are several, the run."""
    words = points["series"] + points["microbatches"].map(lambda m: f" · m={m}" if m > 1 else "")
    return words + (" [" + points["run"] + "]" if named_runs else "")


def _by_axes(points: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """Lines by the axes they spread along: each of dp, tp, pp has a panel, then all hybrids."""
    kinds = points["axes"].map(lambda axes: axes if "+" not in axes else "hybrid")
    words = {"dp": "data parallel", "tp": "tensor parallel", "pp": "pipeline parallel", "hybrid": "hybrids"}
    return [(words[kind], list(dict.fromkeys(points["line"][kinds == kind]))) for kind in words if (kinds == kind).any()]


def _draw(panels: list[tuple[str, list[str]]], points: pd.DataFrame, lost: pd.DataFrame) -> Figure:
    figure = canvas(3.6 * len(panels) if len(panels) > 1 else 5.5, 4.6)
    grid = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 2))
    for (word, lines), (upper, lower) in zip(panels, grid.T, strict=True):
        upper.set_title(word)
        for line, colour, marker in zip(lines, PALETTE, MARKERS, strict=False):
            _draw_line(upper, lower, points[points["line"] == line], line, colour, marker)
            gone = lost[lost["line"] == line]
            bottom = upper.get_xaxis_transform()  # devices across, 0 to 1 upwards
            upper.plot(gone["devices"], [0.03] * len(gone), "x", color=colour, markersize=7, transform=bottom)
        here = points[points["line"].isin(lines)]
        _draw_ideal(upper, here)
        lower.axhline(1, color=FAINT, linestyle="--", linewidth=1)
        counts = sorted({int(d) for d in points["devices"]} | {int(d) for d in lost["devices"]})
        lower.set_xscale("log", base=2)
        lower.xaxis.set_major_locator(FixedLocator(counts))
        lower.xaxis.set_minor_locator(NullLocator())
        lower.set_xticks(counts, [str(count) for count in counts])
        lower.set_xlim(min(counts) / 1.15, max(counts) * 1.15)
        lower.set_xlabel("devices")
        lower.legend(*upper.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, -0.38))
    grid[0, 0].set_yscale("log")
    grid[0, 0].yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    grid[0, 0].yaxis.set_major_formatter(lambda value, _: number(value))
    grid[0, 0].yaxis.set_minor_locator(NullLocator())
    grid[1, 0].set_ylim(0, max(1.1, 1.08 * points["efficiency"].max()))
    grid[0, 0].set_ylabel(per_second(points["throughput_unit"].iloc[0]))
    grid[1, 0].set_ylabel("efficiency (1 = ideal)")
    return figure


def _draw_line(upper: Axes, lower: Axes, line: pd.DataFrame, name: str, colour: str, marker: str) -> None:
    middle = line["throughput"]
    low, high = line["throughput_low"].fillna(middle), line["throughput_high"].fillna(middle)
    fraction = line["serial_fraction"].iloc[0]
    label = shortened(name, 52) + (f"  s={fraction:.2g}" if pd.notna(fraction) else "")
    devices = line["devices"].astype("float64")
    upper.plot(devices, middle, color=colour, marker=marker, markersize=4.5, label=label)
    upper.fill_between(devices, low, high, color=colour, alpha=0.22, linewidth=0)
    lower.plot(devices, line["efficiency"], color=colour, marker=marker, markersize=4.5)
    per_unit = line["efficiency"] / middle  # the base's own interval is left out: it is the same for all points
    lower.fill_between(devices, low * per_unit, high * per_unit, color=colour, alpha=0.22, linewidth=0)
    if pd.notna(fraction):
        times = np.geomspace(1, devices.max() / devices.min(), 40)
        speedup = fitted(line["kind"].iloc[0], times, fraction)
        # A fit can leave the range where the law has a meaning, when spreading makes more work than it saves.
        use = speedup > 0
        base = {"color": colour, "linestyle": ":", "linewidth": 1}
        upper.plot(devices.min() * times[use], middle.iloc[0] * speedup[use], **base)
        lower.plot(devices.min() * times[use], speedup[use] / times[use], **base)


def _draw_ideal(axes: Axes, points: pd.DataFrame) -> None:
    """From the fastest base: n times its throughput on n times its devices."""
    base = points[points["devices"] == points["base_devices"]].sort_values("throughput").iloc[-1]
    ends = [float(base["devices"]), float(points["devices"].max())]
    axes.plot(ends, [base["throughput"] * end / ends[0] for end in ends], color=INK, linestyle="--", linewidth=1, label="ideal")
