"""The report as one self-contained page: everything it shows is in the file, and it loads nothing.

Every string from a record goes through the template's escaping, or reaches the page's script as data that it sets as
text; the drawings alone are inserted as they are, and their text was escaped by the SVG writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from benchmarks.cell import Cell
from harness.report import rows
from harness.report.answers import Answer, answers, outcome
from harness.report.explain import tell
from harness.report.plots import Picture
from harness.report.runs import Run
from harness.report.words import CPU_SENTENCE, shortened

TEMPLATE = "page.html.j2"
MOST_TOLD = 1000
"""Cells that are told in full to a browser without scripts."""
MOST_LISTED = 100
"""Items of a list that a reader is not expected to read to its end."""
LONGEST_REASON = 300


def page(runs: Sequence[Run], table: pd.DataFrame, pictures: Mapping[str, Sequence[Picture]]) -> str:
    """The HTML document.

    Args:
        table: `frame.frame(runs)`.
        pictures: by heading, within the pictures' theme.
    """
    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    shown = rows.columns(table)
    keys = list(zip(shown["run"], shown["cell_id"], strict=True))
    places = {key: place for place, key in enumerate((run.name, record.cell_id) for run in runs for record in run.records)}
    found = answers(table)
    return environment.get_template(TEMPLATE).render(
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        script=Markup((here / "page.js").read_text(encoding="utf-8")),
        runs=[run.name for run in runs],
        outcome={run.name: outcome(table[table["run"] == run.name]) for run in runs},
        waiting={run.name: _limited(waiting) for run in runs if (waiting := _without_record(run))},
        bad_lines={run.name: _limited([asdict(line) for line in run.bad_lines]) for run in runs if run.bad_lines},
        cpu=CPU_SENTENCE if any("cpu" in words.split() for words in table["caveat_words"].unique()) else None,
        answers=[(answer, _anchors(answer)) for answer in found],
        pictures={heading: [(picture, Markup(picture.inline())) for picture in drawn] for heading, drawn in pictures.items()},
        count=len(table),
        data=Markup(rows.as_json(shown, [places[key] for key in keys])),
        packs=[Markup(pack) for pack in rows.packs(runs, dict(zip(keys, table["command"], strict=True)))],
        static_rows=_static_rows(shown, several=len(runs) > 1),
        told=list(_told(runs, found)),
        lost=_limited(_lost(table)),
        caveats=_limited(_caveats(runs)),
        environments=[(run.name, dict(_flat(run.environment)), dict(_flat(_about(run)))) for run in runs],
    )


def _limited(items: list) -> tuple[list, int]:
    """The first items, and how many more there are."""
    return items[:MOST_LISTED], max(0, len(items) - MOST_LISTED)


def _anchors(answer: Answer) -> dict[str, str]:
    """Cell id -> anchor, of the cells that an answer names."""
    return {choice.cell_id: rows.anchor(answer.run, choice.cell_id) for choice in _choices(answer)}


def _choices(answer: Answer) -> list:
    return [choice for choice in (answer.fastest, answer.leanest, *answer.pareto) if choice]


def _static_rows(shown: pd.DataFrame, *, several: bool) -> Markup:
    """The rows of the table for a browser without scripts. Written here, as a template takes too long for 20,000."""
    names = [*(["run"] if several else []), "cell_id", "model", "label", "technique", "devices", "status", "throughput",
             "throughput_unit", "interval", "step_seconds", "peak_memory_bytes", "parity", "update_error", "caveat_words",
             "reason"]  # fmt: skip
    texts = [_markup_of_figures(name, shown[name]) if name in rows.FIGURES else _escaped(shown[name]) for name in names]
    lines = ("<tr><td>" + "<td>".join(row) for row in zip(*texts, strict=True))
    return Markup("\n".join(lines))


def _markup_of_figures(name: str, values: pd.Series) -> list[str]:
    """Numbers as they are written, which holds nothing to escape."""
    return [rows.written(name, value) for value in values]


def _escaped(texts: pd.Series) -> list[str]:
    """Each different text escaped once."""
    index, values = pd.factorize(texts.fillna(""))
    markup = [str(escape(value)) for value in values]
    return [markup[i] for i in index]


def _told(runs: Sequence[Run], found: Sequence[Answer]) -> Iterator[tuple[str, str, Any, str]]:
    """(run, anchor, record, text) of the cells that answers name, and then of others up to `MOST_TOLD`."""
    named = {(answer.run, choice.cell_id) for answer in found for choice in _choices(answer)}
    everything = [(run.name, record) for run in runs for record in run.records]
    first = sorted(everything, key=lambda item: (item[0], item[1].cell_id) not in named)
    chosen = {(run, record.cell_id) for run, record in first[: max(MOST_TOLD, len(named))]}
    for run, record in everything:
        if (run, record.cell_id) in chosen:
            yield run, rows.anchor(run, record.cell_id), record, tell(record)


def _lost(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Why cells have no verified figure: each reason once, with how many cells it stands for; the most frequent first."""
    lost = table[~table["verified"]]
    found = []
    for (word, phase, reason), cells in lost.fillna({"phase": "", "reason": ""}).groupby(
        ["word", "phase", "reason"], sort=False
    ):
        names = [f"{model} {label}" for model, label in zip(cells["model"], cells["label"], strict=True)]
        found.append(
            {
                "word": word,
                "phase": phase,
                "reason": shortened(reason, LONGEST_REASON) or "no reason was recorded",
                "count": len(cells),
                "names": "; ".join(names[:4]) + ("; …" if len(names) > 4 else ""),
                "anchor": rows.anchor(cells["run"].iloc[0], cells["cell_id"].iloc[0]),
            }
        )
    return sorted(found, key=lambda reason: -reason["count"])


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
    done = {record.asked for record in run.records}
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
