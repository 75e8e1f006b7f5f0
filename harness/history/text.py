"""A history as text for a terminal and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.compare.markdown import MARKS, table
from harness.history.judge import Change, Series
from harness.report.words import amount
from harness.table import counted, text_table

UNITS = {"step_seconds": "s", "peak_memory_bytes": "bytes"}
HEADER = ("verdict", "cell", "name", "metric", "change", "first bad commit", "last good commit", "nights on it")


def exit_status(series: Sequence[Series]) -> int:
    """0: no level rose; 1: one did, and nobody has accepted it; 2: there are too few nights to tell anything."""
    if any(change.word == "regressed" for s in series for change in s.changes):
        return 1
    return 0 if any(len(s.values) > 1 for s in series) else 2


def checked(series: Sequence[Series], folder: Path) -> str:
    """Every change that nobody has accepted, and what to do about it."""
    rows = [_row(s, change) for s, change in _changes(series)]
    lines = [text_table(HEADER, rows), ""] if rows else []
    counts = Counter(change.word for _, change in _changes(series))
    said = ", ".join(f"{n} {word}" for word, n in counts.items()) or "no change"
    lines.append(f"{counted(len(series), 'series')}: {said}".replace("seriess", "series"))
    for s, change in _changes(series):
        if change.word != "suspect":
            lines.append(
                f"if it is meant: hpbench history accept {s.cell} {s.metric} {change.commit[:12]} --store {folder} "
                "--who NAME --why REASON"
            )
            break
    lines.append(f"exit {exit_status(series)}: {MEANINGS[exit_status(series)]}")
    return "\n".join(lines)


MEANINGS = {
    0: "no level rose that nobody has accepted",
    1: "a level rose, and nobody has accepted it",
    2: "there are too few nights to tell anything",
}


def markdown(series: Sequence[Series]) -> str:
    """The same for a summary of a workflow."""
    rows = [(MARKS.get(change.word, "❔"), *_row(s, change)) for s, change in _changes(series)]
    lines = [f"### hpbench history: {MEANINGS[exit_status(series)]}", ""]
    return "\n".join([*lines, *(table(("", *HEADER), rows) if rows else [])]).rstrip() + "\n"


def shown(series: Sequence[Series]) -> str:
    """Every series in a line: its nights, where it stands, and how often its level changed."""
    header = ("machine", "cell", "name", "metric", "nights", "first", "last", "changes", "accepted")
    rows = [
        (
            s.fingerprint,
            s.cell,
            s.name,
            s.metric,
            str(len(s.values)),
            amount(s.values[0], UNITS[s.metric]),
            amount(s.values[-1], UNITS[s.metric]),
            ", ".join(f"{c.word} at {c.commit[:12]}" for c in s.changes) or "-",
            ", ".join(f"{entry.commit[:12]} ({entry.who}: {entry.why})" for _, entry in s.accepted) or "-",
        )
        for s in series
        if s.values
    ]
    return text_table(header, rows)


def _changes(series: Sequence[Series]) -> Iterator[tuple[Series, Change]]:
    order = ("regressed", "improved", "suspect")
    found = [(s, change) for s in series for change in s.changes]
    yield from sorted(found, key=lambda item: order.index(item[1].word))


def _row(s: Series, change: Change) -> tuple[str, ...]:
    unit = UNITS[s.metric]
    figures = f"{amount(change.point.before, unit)} -> {amount(change.point.after, unit)} ({change.point.change:+.1%})"
    return (
        change.word,
        s.cell,
        s.name,
        s.metric,
        figures,
        change.commit[:12],
        change.last_good[:12],
        str(change.nights),
    )
