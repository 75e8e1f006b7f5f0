"""A comparison as Markdown, fit for a comment on a change or for `$GITHUB_STEP_SUMMARY`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.compare.verdicts import LOUD, MEANINGS, Comparison

MARKS = {"regressed": "🔴", "errored": "🔴", "improved": "🟢", "stable": "⚪"}
"""What is seen before a word is read; the others have ❔."""
MOST_ROWS = 100
"""A comment may hold 65,536 characters."""


def markdown(comparison: Comparison, base: str, head: str) -> str:
    """The verdicts that are not `stable` as a table, and counts of all."""
    counts = Counter(verdict.word for verdict in comparison.verdicts)
    rows = sorted((v for v in comparison.verdicts if v.word in LOUD), key=lambda v: LOUD.index(v.word))
    status = comparison.exit_status
    lines = [f"### hpbench: {MEANINGS[status]}", "", f"`{head}` against `{base}`", ""]
    lines.append(", ".join(f"{n} {word}" for word, n in counts.most_common()) or "no cell is in both")
    if rows:
        header = ("", "verdict", "cell", "metric", "what was seen")
        lines += ["", *table(header, [(MARKS.get(v.word, "❔"), v.word, v.name, v.metric, v.why) for v in rows[:MOST_ROWS]])]
    if len(rows) > MOST_ROWS:
        lines += ["", f"and {len(rows) - MOST_ROWS} more"]
    lines += ["", *(f"- {note}" for note in comparison.notes)]
    return "\n".join(lines).rstrip() + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; what cells hold cannot break it, nor be taken for markup or a mention."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(map(_safe, line)) + " |" for line in lines]


def _safe(text: str) -> str:
    text = " ".join(text.split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("@", "@\u200b").replace("*", "\\*")
