"""The store of a history: a folder of files that only grow, so that it can be a branch of its own in git. Imports no torch.

    <machine fingerprint>/environment.json   the machine and its software, see `harness.environment`
    <machine fingerprint>/nights.jsonl       one line for each night: commit, time, the medians of its runs
    accepted.jsonl                           one line for each change that somebody accepted: which, who, why

Another machine, driver or torch has another fingerprint: a new epoch, whose figures are never held against the old ones.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.errors import UsageError
from harness import store
from harness.compare.verdicts import title

SCHEMA = 1
ENVIRONMENT, NIGHTS, ACCEPTED = "environment.json", "nights.jsonl", "accepted.jsonl"
METRICS = ("step_seconds", "peak_memory_bytes")
"""What is followed: lower is better of each. Losses and counts are held to golden files exactly, which need no history."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    schema_: int = Field(default=SCHEMA, alias="schema")


class Night(_Data):
    """What several runs of one commit gave."""

    time: str
    """When its last cell ended, ISO 8601, UTC."""
    commit: str
    runs: list[str]
    """Ids of the runs."""
    names: dict[str, str]
    """Cell id -> what it is, for people."""
    figures: dict[str, dict[str, float]]
    """Cell id -> metric -> median over the runs. Cells without figures are absent."""


class Accepted(_Data):
    """A change that is meant."""

    fingerprint: str
    cell: str
    metric: str
    commit: str
    """The first one on the new level."""
    night: str
    """When that night was, as one commit may be measured on several."""
    who: str
    why: str
    time: str


Line = TypeVar("Line", Night, Accepted)


def add(folder: Path, runs: Sequence[store.Run], commit: str | None) -> Night:
    """Append the runs of one commit as one night.

    Args:
        runs: of one machine and one state; three make a night that one slow run does not disturb.
        commit: of the project under test; None: of hpbench itself, as the runs recorded it.

    Raises:
        UsageError: the runs are of several machines or commits, one of them is in the store already, or it cannot be written.
    """
    environment = runs[0].environment
    if len({run.environment["id"] for run in runs}) > 1:
        raise UsageError("the runs are of several machines or software: add those of each by themselves")
    commits = {commit or run.environment.get("suite_commit") or "" for run in runs}
    if len(commits) > 1 or "" in commits:
        raise UsageError(f"the runs are of {len(commits)} commits or of none: say by --commit which one was measured")
    place = folder / environment["id"]
    ids = [run.run["run_id"] for run in runs]
    known = {run for night in read(place / NIGHTS, Night) for run in night.runs}
    if known.intersection(ids):
        raise UsageError(f"run '{sorted(known.intersection(ids))[0]}' is in '{folder}' already: add every run once")
    night = _night(runs, commits.pop(), ids)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not (place / ENVIRONMENT).exists():
            store.write_json(place / ENVIRONMENT, environment)
        _append(place / NIGHTS, night)
    except OSError as error:
        raise UsageError(f"history '{folder}' cannot be written: {error.strerror}; give --store another folder") from None
    return night


def accept(folder: Path, accepted: Accepted) -> None:
    """Append a change that is meant."""
    _append(folder / ACCEPTED, accepted)


def epochs(folder: Path) -> dict[str, list[Night]]:
    """Fingerprint -> its nights in the order in which they were added.

    Raises:
        UsageError: there is no history, or a line of it cannot be read.
    """
    found = {path.parent.name: list(read(path, Night)) for path in sorted(folder.glob(f"*/{NIGHTS}"))}
    if not found:
        raise UsageError(f"'{folder}' holds no history: add runs by 'hpbench history add RUN... --store {folder}'")
    return found


def read(path: Path, kind: type[Line]) -> Iterator[Line]:
    """The lines of a file, which need not be there.

    Raises:
        UsageError: a line, which is named, is cut off, of another schema, or no such line.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        where = f"line {number} of '{path}'"
        if not line.endswith(b"\n"):
            raise UsageError(f"{where} is cut off: take it out and add that night again")
        try:
            content = json.loads(line)
            if isinstance(content, dict) and content.get("schema") != SCHEMA:
                found = content.get("schema")
                raise UsageError(f"{where} is of schema {found!r}, and this hpbench reads schema {SCHEMA}: use a newer hpbench")
            yield kind.model_validate(content)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise UsageError(f"{where} is none of a history: {place}: {problem['msg']}; take it out") from None
        except json.JSONDecodeError as error:
            raise UsageError(f"{where} is no JSON: {error}; take it out and add that night again") from None


def _night(runs: Sequence[store.Run], commit: str, ids: list[str]) -> Night:
    names: dict[str, str] = {}
    values: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for record in run.records:
            if record.status != "ok":
                continue
            names[record.cell_id] = title(record.cell)
            for metric in METRICS:
                if metric in record.metrics:
                    values.setdefault(record.cell_id, {}).setdefault(metric, []).append(record.metrics[metric].value)
    figures = {cell: {metric: statistics.median(v) for metric, v in found.items()} for cell, found in values.items()}
    time = max((record.time for run in runs for record in run.records), default="")
    return Night(time=time, commit=commit, runs=ids, names=names, figures=figures)


def _append(path: Path, line: BaseModel) -> None:
    text: Any = line.model_dump_json(by_alias=True) + "\n"
    with path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
