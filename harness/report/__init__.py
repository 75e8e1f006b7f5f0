"""Draws a report from records alone: pictures, `summary.csv` and one self-contained `report.html`. Needs no torch.

hpbench report results/<run>
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import UsageError


def draw(run_folders: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write `plots/`, `summary.csv` and `report.html`; a report that was there is replaced.

    Args:
        run_folders: one run, or several to be set side by side.
        out: where to; default: the first run's folder.

    Returns:
        The path of `report.html`.

    Raises:
        UsageError: a folder is no run, or `out` is another run's or cannot be written.
    """
    # Drawing libraries take a second or two to load, which the other commands need not wait for.
    from harness.report import frame, page, plots, runs

    read = runs.read(run_folders)
    folder = Path(run_folders[0] if out is None else out)
    _check(folder, [Path(run) for run in run_folders])
    gc.freeze()  # records live to the end and hold no cycles: the collector need not walk them again and again
    try:
        table = frame.frame(read)
        with plots.theme():
            pictures = plots.draw_all(table)
            document = page.page(read, table, pictures)
            _write(folder, document, table.to_csv(index=False), [p for drawn in pictures.values() for p in drawn])
    except OSError as problem:
        raise UsageError(f"cannot write a report to '{folder}': {problem.strerror}; give --out another folder") from None
    finally:
        gc.unfreeze()
    return folder / "report.html"


def _check(folder: Path, run_folders: Sequence[Path]) -> None:
    if (folder / "run.json").exists() and folder.resolve() not in [run.resolve() for run in run_folders]:
        raise UsageError(f"'{folder}' is a run that the report is not about: give --out another folder")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"'{folder}' is a file: give --out a folder")


def _write(folder: Path, document: str, summary: str, pictures: Sequence) -> None:
    plots = folder / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    for old in (path for suffix in ("*.png", "*.svg", "*.csv") for path in plots.glob(suffix)):
        old.unlink()
    for picture in pictures:
        picture.save(plots)
    for name, text in {"summary.csv": summary, "report.html": document}.items():
        half = folder / f"{name}.new"
        half.write_text(text, encoding="utf-8")
        os.replace(half, folder / name)
