"""The cells as the page's script wants them: one compact table, and each cell's record packed until someone asks for it.

A page of 20,000 cells must open in a second, so nothing of a cell is an element of the page before it is looked at: the
table is columns of JSON, and records are deflated in packs, which the browser unpacks itself.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from harness.report.runs import Run
from harness.report.words import amount, error, number, shortened

PACK = 100
"""Records in one pack."""
LONGEST_REASON = 160
"""In the table; a cell's own part of the page has the whole."""

TEXT = ("run", "model", "label", "layout", "precision", "technique", "status", "throughput_unit", "parity", "caveat_words",
        "cell_id", "reason")  # fmt: skip
"""Columns of words: each value is kept once, and rows point to it."""
FIGURES = {
    "devices": lambda value: f"{value:g}",
    "throughput": number,
    "step_seconds": lambda value: amount(value, "s"),
    "peak_memory_bytes": lambda value: amount(value, "bytes"),
    "update_error": error,
}
"""Columns of numbers -> how a number is written."""


def columns(table: pd.DataFrame) -> pd.DataFrame:
    """What the table of cells shows: `TEXT`, `FIGURES`, `interval`, `anchor` and `verified`; missing values are None."""
    table = table.astype(object).where(table.notna(), None)
    low, high = table["throughput_low"], table["throughput_high"]
    return table.assign(
        status=[word or "ok" for word in table["word"]],
        parity=table["verdict"],
        reason=[shortened(reason, LONGEST_REASON) if reason else "" for reason in table["reason"]],
        interval=[
            f"{number(a)} – {number(b)}" if a is not None and b is not None else "" for a, b in zip(low, high, strict=True)
        ],
        anchor=[anchor(run, cell_id) for run, cell_id in zip(table["run"], table["cell_id"], strict=True)],
    )[[*TEXT, *FIGURES, "interval", "anchor", "verified"]]


def written(name: str, value: float | None) -> str:
    """A figure of the table as text, empty where there is none."""
    return "" if value is None else FIGURES[name](value)


def anchor(run: str, cell_id: str) -> str:
    """What a link to a cell ends in."""
    return f"cell-{run}-{cell_id}".replace(" ", "-")


def as_json(shown: pd.DataFrame, places: Sequence[int]) -> str:
    """The table for the page's script, safe within a `<script>` element.

    Args:
        shown: `columns(table)`.
        places: where each row's record stands among all records, see `packs`.
    """
    words: dict[str, Any] = {}
    for name in TEXT:
        index, values = pd.factorize(shown[name].fillna(""))
        words[name] = {"values": list(values), "index": index.tolist()}
    figures = {name: {"value": list(shown[name]), "text": [written(name, value) for value in shown[name]]} for name in FIGURES}
    rest = {name: list(shown[name]) for name in ("interval", "anchor", "verified")}
    return _within_script({"words": words, "figures": figures, **rest, "place": list(places), "pack": PACK})


def packs(runs: Sequence[Run], commands: dict[tuple[str, str], str]) -> Iterator[str]:
    """All records, run by run, in packs of `PACK`: zlib's deflate in base64 of a JSON list of {command, record}.

    Args:
        commands: by run and cell id, the command that repeats the cell.
    """
    lines = (
        f'{{"command":{json.dumps(commands[run.name, record.cell_id])},"record":{record.to_line()}}}'
        for run in runs
        for record in run.records
    )
    pack: list[str] = []
    for line in lines:
        pack.append(line)
        if len(pack) == PACK:
            yield _packed(pack)
            pack = []
    if pack:
        yield _packed(pack)


def _packed(lines: list[str]) -> str:
    return base64.b64encode(zlib.compress(f"[{','.join(lines)}]".encode(), 1)).decode()


def _within_script(value: Any) -> str:
    """JSON in which no `<` can end or open an element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
