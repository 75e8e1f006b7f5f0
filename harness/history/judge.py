"""What a history says: for each cell, metric and machine where its level changed, and which changes nobody has accepted.

An accepted change begins a new segment: the points before it are of the past, and only those after it are looked at.
One or two points on a new level are `suspect`, three are an alarm; a suspect that stays becomes one by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.history.change_points import ChangePoint, change_points
from harness.history.ledger import METRICS, Accepted, Night

ALARM = 3
"""Points on a new level that make it an alarm."""

Word = Literal["regressed", "improved", "suspect"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric of one cell on one machine, over the nights that have it."""

    fingerprint: str
    cell: str
    name: str
    metric: str
    nights: tuple[Night, ...]
    values: tuple[float, ...]
    changes: tuple[Change, ...] = ()
    """Since the last accepted one."""
    accepted: tuple[tuple[int, Accepted], ...] = ()
    """Index of the first point on the new level, and what was said of it."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of level that nobody has accepted."""

    word: Word
    index: int
    """Of the first night on the new level, among the series' nights."""
    commit: str
    """Of that night."""
    last_good: str
    """Commit of the night before."""
    point: ChangePoint
    nights: int
    """On the new level, as far as it goes."""


def judged(epochs: Mapping[str, Sequence[Night]], accepted: Sequence[Accepted]) -> list[Series]:
    """Every series with its changes, by machine, cell and metric."""
    return [_judged(series) for series in _series(epochs, accepted)]


def _series(epochs: Mapping[str, Sequence[Night]], accepted: Sequence[Accepted]) -> Iterator[Series]:
    known: dict[tuple[str, str, str], list[Accepted]] = {}
    for entry in accepted:
        known.setdefault((entry.fingerprint, entry.cell, entry.metric), []).append(entry)
    for fingerprint, nights in epochs.items():
        names = {cell: name for night in nights for cell, name in night.names.items()}
        for cell, name in sorted(names.items(), key=lambda item: item[1]):
            for metric in METRICS:
                with_it = [night for night in nights if metric in night.figures.get(cell, {})]
                places = {(night.commit, night.time): index for index, night in enumerate(with_it)}
                entries = known.get((fingerprint, cell, metric), [])
                marks = [(places[e.commit, e.night], e) for e in entries if (e.commit, e.night) in places]
                yield Series(
                    fingerprint=fingerprint,
                    cell=cell,
                    name=name,
                    metric=metric,
                    nights=tuple(with_it),
                    values=tuple(night.figures[cell][metric] for night in with_it),
                    accepted=tuple(sorted(marks, key=lambda mark: mark[0])),
                )


def _judged(series: Series) -> Series:
    start = series.accepted[-1][0] if series.accepted else 0
    points = change_points(series.values[start:])
    ends = [*(start + point.index for point in points[1:]), len(series.values)]
    changes = []
    for point, end in zip(points, ends, strict=False):
        index = start + point.index
        # A level that was left again tells no more than that it was there; how long it lasted says whether it was chance.
        nights = end - index
        word: Word = "suspect" if nights < ALARM else "regressed" if point.change > 0 else "improved"
        changes.append(
            Change(
                word=word,
                index=index,
                commit=series.nights[index].commit,
                last_good=series.nights[index - 1].commit,
                point=point,
                nights=nights,
            )
        )
    return Series(**{**vars(series), "changes": tuple(changes)})
