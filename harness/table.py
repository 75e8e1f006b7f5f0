"""Text for a terminal: tables, durations, and a cell's techniques in a few words. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cell import Cell


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry, two spaces apart."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table)


def techniques(cell: Cell) -> str:
    """What combines with the layout, for example `bf16, checkpointing full, 2 microbatches, clip 1`."""
    words = [cell.precision]
    words += [f"{name} {value}" for name in ("checkpointing", "offload", "compile") if (value := getattr(cell, name)) != "none"]
    if cell.batch.microbatches > 1:
        words.append(f"{cell.batch.microbatches} microbatches")
    if cell.clip:
        words.append(f"clip {cell.clip:g}")
    return ", ".join(words)


def counted(number: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A rounded time: `8 s`, `3 min 20 s`, `2 h 5 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
