"""Cells that keep something in another dtype than those they stand beside. Imports no torch.

A strategy that keeps its master weights, its optimizer's state or the gradients that it reduces in fewer bits saves memory and
time that no placement of the model saves, and its figures shall not pass for a better one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from harness.record import Record

SUBJECTS = ("parameters", "gradients", "reduction", "optimizer_state")
"""Of `Observed.dtypes`; the dtype of products is the precision itself, which the harness holds each cell against."""


def unlike(records: Iterable[Record]) -> dict[str, str]:
    """Cell id -> what differs, for example `dtypes: optimizer state bf16, where others of bf16 have fp32`.

    Held against each other are cells of one model and precision that ended ok. What most of them have is the measure, and that
    of the single device where there are as many of another.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and record.observed is not None:
            groups[record.cell.model, record.cell.precision].append(record)
    found: dict[str, list[str]] = defaultdict(list)
    for (_, precision), cells in groups.items():
        for subject in SUBJECTS:
            usual = _usual(cells, subject)
            for record in cells:
                dtype = record.observed.dtypes.get(subject, usual)
                if dtype != usual:
                    words = f"{subject.replace('_', ' ')} {dtype}, where others of {precision} have {usual}"
                    found[record.cell_id].append(words)
    return {cell_id: f"dtypes: {'; '.join(differences)}" for cell_id, differences in found.items()}


def _usual(cells: Iterable[Record], subject: str) -> str | None:
    """What most cells have."""
    seen: Counter[str] = Counter()
    for record in cells:
        if subject in record.observed.dtypes:
            # The single device's cell decides where two are equally frequent.
            seen[record.observed.dtypes[subject]] += 3 if str(record.cell.layout) == "single" else 2
    return max(seen, key=seen.__getitem__, default=None)
