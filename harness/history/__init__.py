"""A history of nightly runs: kept, shown, and judged for changes of level. Imports no torch.

hpbench history add RUN RUN RUN --store DIR      the runs of one night
hpbench history check --store DIR                exit status 1: a level rose, and nobody has accepted it
hpbench history show --store DIR                 a table, and pictures of every series with its marks
hpbench history accept CELL METRIC COMMIT --store DIR --who NAME --why REASON
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.errors import UsageError, unknown
from harness.compare import whole
from harness.history.judge import Series, judged
from harness.history.ledger import ACCEPTED, METRICS, Accepted, Night, accept, add, epochs, read
from harness.history.text import checked, exit_status, markdown, shown

__all__ = ["accept_change", "add_runs", "check", "load", "show"]


def load(folder: Path) -> list[Series]:
    """Every series of a history, judged.

    Raises:
        UsageError: there is none, or a line of it cannot be read.
    """
    return judged(epochs(folder), list(read(folder / ACCEPTED, Accepted)))


def add_runs(folder: Path, runs: Sequence[Path], commit: str | None) -> int:
    """Add the runs of one night."""
    night = add(folder, [whole(run) for run in runs], commit)
    print(f"added: {len(night.figures)} cells of {len(runs)} runs at {night.commit[:12]} to {folder}")
    print(f"next: hpbench history check --store {folder}")
    return 0


def check(folder: Path, summary: Path | None = None) -> int:
    """Print what changed and nobody has accepted; returns the exit status."""
    series = load(folder)
    print(checked(series, folder))
    if summary:
        summary.write_text(markdown(series))
    return exit_status(series)


def show(folder: Path, out: Path | None = None) -> int:
    """Print every series in a line and draw them all."""
    from harness.history.timeline import draw

    series = load(folder)
    print(shown(series))
    for picture in draw(series, out or folder / "plots"):
        print(f"picture: {picture}")
    return 0


def accept_change(folder: Path, cell: str, metric: str, commit: str, who: str, why: str) -> int:
    """Note that a change is meant: its new level is what later nights are held against.

    Raises:
        UsageError: there is no such series, or no such night in it.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS, "of a history")
    series = [s for s in load(folder) if s.metric == metric and s.cell.startswith(cell) and s.values]
    if not series:
        raise unknown("cell", cell, {s.cell for s in load(folder)}, f"in '{folder}'")
    if len({s.cell for s in series}) > 1:
        raise UsageError(f"{cell!r} begins the ids of several cells: give more characters of one")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    for s in series:
        night = _night(s, commit)
        entry = {"cell": s.cell, "metric": metric, "commit": night.commit, "night": night.time, "who": who, "why": why}
        accept(folder, Accepted(fingerprint=s.fingerprint, time=now, **entry))
        print(f"accepted: {metric} of {s.name} on machine {s.fingerprint} from {night.commit[:12]} on")
    return 0


def _night(series: Series, commit: str) -> Night:
    """The night at which a change was found, else the first one, of a commit."""
    changed = [series.nights[change.index] for change in series.changes]
    for night in [*changed, *series.nights]:
        if night.commit.startswith(commit):
            return night
    raise UsageError(
        f"no night of {series.cell} on machine {series.fingerprint} has commit {commit!r}: "
        "give one that 'hpbench history check' names"
    )
