"""The report as one self-contained page: everything it shows is in the file, and it loads nothing.

Every string from a record goes through the template's escaping; the drawings alone are inserted as they are, and their
text was escaped by the SVG writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from benchmarks.cell import Cell
from harness.report.answers import answers, outcome
from harness.report.explain import tell
from harness.report.plots import Picture
from harness.report.runs import Run
from harness.report.words import CPU_SENTENCE, amount, error, number

TEMPLATE = "page.html.j2"


def page(runs: Sequence[Run], table: pd.DataFrame, pictures: Mapping[str, Sequence[Picture]]) -> str:
    """The HTML document.

    Args:
        table: `frame.frame(runs)`.
        pictures: by heading, within the pictures' theme.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"error": error}
    # pandas' missing values are falsy nowhere: a template wants None.
    cells = table.astype(object).where(table.notna(), None).to_dict("records")
    return environment.get_template(TEMPLATE).render(
        runs=[run.name for run in runs],
        outcome={run.name: outcome(table[table["run"] == run.name]) for run in runs},
        waiting={run.name: waiting for run in runs if (waiting := _without_record(run))},
        cpu=CPU_SENTENCE if any("cpu" in cell["caveat_words"].split() for cell in cells) else None,
        answers=answers(table),
        pictures={heading: [(picture, Markup(picture.inline())) for picture in drawn] for heading, drawn in pictures.items()},
        cells=[cell | _written(cell) for cell in cells],
        caveats=_caveats(runs),
        environments=[(run.name, dict(_flat(run.environment)), dict(_flat(_about(run)))) for run in runs],
        told=[(run.name, record, tell(record)) for run in runs for record in run.records],
    )


def _written(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell's figures as text, empty where there is none."""
    low, high = cell["tokens_per_second_low"], cell["tokens_per_second_high"]
    texts = {
        "interval": f"{number(low)} – {number(high)}" if low is not None and high is not None else "",
        "rate": number(cell["tokens_per_second"]) if cell["tokens_per_second"] is not None else "",
        "step": amount(cell["step_seconds"], "s") if cell["step_seconds"] is not None else "",
        "peak": amount(cell["peak_memory_bytes"], "bytes") if cell["peak_memory_bytes"] is not None else "",
    }
    return {"text": texts, "anchor": _anchor(cell["run"], cell["cell_id"])}


def _anchor(run: str, cell_id: str) -> str:
    return f"cell-{run}-{cell_id}".replace(" ", "-")


def _caveats(runs: Sequence[Run]) -> list[tuple[str, int, int]]:
    """Every caveat as it was written, with how many of all cells carry it; the most frequent first."""
    all_records = [record for run in runs for record in run.records]
    counts: dict[str, int] = {}
    for record in all_records:
        for caveat in record.caveats:
            counts[caveat] = counts.get(caveat, 0) + 1
    return [(caveat, n, len(all_records)) for caveat, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _without_record(run: Run) -> list[str]:
    """Cells that an interrupted run was asked for and has no record of."""
    done = {record.cell_id for record in run.records}
    planned = [Cell.model_validate(planned["cell"]) for planned in run.about.get("cells", [])]
    return [f"{cell.model} {cell.layout}" for cell in planned if cell.id not in done]


def _about(run: Run) -> dict[str, Any]:
    """What `run.json` says of the run; its cells stand in the table already."""
    return {key: value for key, value in run.about.items() if key != "cells"}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """A nested object as (path, text) pairs, for example ("site.count", "2")."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{i}")
    else:
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)
