"""A comparison as text for a terminal: what changed first, then what cannot be told, then counts of the rest."""

from __future__ import annotations

from collections import Counter

from harness.compare.verdicts import LOUD, MEANINGS, Comparison, Verdict


def written(comparison: Comparison, base: str, head: str) -> str:
    """The comparison as text."""
    lines = [f"{head} against {base}", ""]
    for word in LOUD:
        found = [verdict for verdict in comparison.verdicts if verdict.word == word]
        if found:
            lines += [f"{word} ({len(found)})", *_lines(found), ""]
    counts = Counter(verdict.word for verdict in comparison.verdicts)
    lines.append("verdicts: " + (", ".join(f"{n} {word}" for word, n in counts.most_common()) or "none, no cell is in both"))
    if comparison.without_figures:
        alike = ", ".join(f"{n} {word}" for word, n in comparison.without_figures.items())
        lines.append(f"without figures on both sides alike: {alike}")
    lines += [f"note: {note}" for note in comparison.notes]
    status = comparison.exit_status
    lines.append(f"exit {status}: {MEANINGS[status]}")
    return "\n".join(lines)


def _lines(verdicts: list[Verdict]) -> list[str]:
    width = max(len(verdict.name) for verdict in verdicts)
    return [
        f"  {verdict.cell_id}  {verdict.name:{width}}  {' '.join(filter(None, (verdict.metric, verdict.why)))}"
        for verdict in verdicts
    ]
