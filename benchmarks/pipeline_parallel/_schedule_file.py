"""A schedule as a CSV file: read, and checked so far that what is wrong with it can be said in one sentence.

One line for each process, in order; in it the actions of that process, in order. An action is a stage, what is done and a
microbatch, all counted from 0: `2F0` is the forward of stage 2 for microbatch 0, `2B0` its whole backward, `2I0` and `2W0`
the gradients of its input and of its weights. `(0F3;2B1)OVERLAP_F_B` are two that are meant to overlap; an empty field waits.
Sends and receives are torch's to find. torch's own schedules can be written in this form (`_dump_csv`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.errors import UsageError

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\((\d+F\d+);(\d+B\d+)\)OVERLAP_F_B")


class Action(NamedTuple):
    """One thing that a process does."""

    stage: int
    kind: str
    """`F`, `B`, `I` or `W`."""
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True, kw_only=True)
class ScheduleFile:
    """What stands in a file."""

    path: Path
    actions: tuple[tuple[Action, ...], ...]
    """By process."""

    @property
    def microbatches(self) -> int:
        """How many it is for."""
        return 1 + max(action.microbatch for row in self.actions for action in row)

    @property
    def placement(self) -> list[tuple[int, ...]]:
        """The stages that each process holds."""
        return [tuple(sorted({action.stage for action in row})) for row in self.actions]


@cache
def read(path: Path) -> ScheduleFile:
    """Read a file.

    Raises:
        UsageError: there is none, or it is no schedule: some stage does not run each microbatch forward and backward once and
            in this order.
    """
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read schedule {path}: {error}; give a CSV file with one line for each process") from None
    if not rows:
        raise UsageError(f"schedule {path} is empty: write one line for each process, with its actions, for example 0F0,0B0")
    found = ScheduleFile(path=path, actions=tuple(tuple(_actions(path, number, row)) for number, row in enumerate(rows, 1)))
    problem = _problem(found)
    if problem:
        raise UsageError(f"schedule {path} cannot run: {problem}")
    return found


def _actions(path: Path, line: int, fields: list[str]) -> Iterator[Action]:
    empty = True
    for field in map(str.strip, fields):
        pair = _PAIR.fullmatch(field)
        for text in pair.groups() if pair else filter(None, (field,)):
            match = _ACTION.fullmatch(text)
            if not match:
                raise UsageError(
                    f"schedule {path}, line {line}: {field!r} is no action; write a stage, one of F, B, I, W and a microbatch, "
                    "for example 0F1, or nothing"
                )
            empty = False
            yield Action(int(match[1]), match[2], int(match[3]))
    if empty:
        raise UsageError(f"schedule {path}, line {line}: the process has nothing to do; leave the line out")


def _problem(found: ScheduleFile) -> str | None:
    """What a stage does too often, too early, not at all or on two processes."""
    process_of: dict[int, int] = {}
    done: dict[tuple[int, int], str] = {}
    for process, row in enumerate(found.actions):
        for action in row:
            if process_of.setdefault(action.stage, process) != process:
                return f"stage {action.stage} stands on lines {process_of[action.stage] + 1} and {process + 1}; keep it on one"
            before = done.get((action.stage, action.microbatch), "")
            if before + action.kind not in ("F", "FB", "FI", "FIW"):
                after = f" after {action._replace(kind=before[-1])}" if before else ""
                return (
                    f"{action}{after} on line {process + 1} comes too often or too early; "
                    "a stage runs each microbatch's F, then its B, or its I and W"
                )
            done[action.stage, action.microbatch] = before + action.kind
    for stage in range(1 + max(process_of)):
        for microbatch in range(found.microbatches):
            kinds = done.get((stage, microbatch), "")
            if kinds not in ("FB", "FIW"):
                missing = {"": "F", "F": "B"}.get(kinds, "W")
                return f"{stage}{missing}{microbatch} is missing; every stage runs every microbatch forward and backward"
    return None
