"""The parity table names every combination of what lies in the folders; the whole of it runs under a marker."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.cell import Cell
from benchmarks.compose import illegal, processes
from benchmarks.registry import AXES, names
from benchmarks.site import Site
from harness import matrix, suites
from harness.record import Record

SITE = Site(kind="cpu", count=2)
EXCEPTIONS = yaml.safe_load((Path(__file__).parent / "exceptions.yaml").read_text())
MICROBATCHES = {1, 2, 4}
ONE_STAGE_EACH = ("devices", "manual", "gpipe", "1f1b")
NOT_IN_THREES = {
    "dp": (
        *("dataparallel", "fsdp1", "hsdp", "replicate", "zero1-native"),
        *("zero0", "zero2", "zero3", "fairscale-oss", "fairscale-sdp", "fairscale-fsdp"),
    ),
    "tp": ("fairscale", "autotp"),
}
"""Data and tensor implementations that meet each one of the other axes, once, and not two together."""


def table() -> list[Cell]:
    """The cells of the suite `parity`, with their processes."""
    cells = matrix.expand(suites.load("parity"), SITE)
    return [c.model_copy(update={"processes": processes(c.layout)}) for c in cells]


def excepted(cell: Cell) -> dict[str, Any] | None:
    """The committed exception that covers a cell."""
    return next((exception for exception in EXCEPTIONS if _covers(exception, cell)), None)


def _covers(exception: dict[str, Any], cell: Cell) -> bool:
    """Whether a cell is as all fields of an exception say."""
    for axis in AXES:
        found = cell.layout.get(axis)
        if axis in exception and (found is None or found.implementation not in exception[axis]):
            return False
    if exception.get("with_tensor") and cell.layout.degree("tp") == 1:
        return False
    if exception.get("tied") and not cell.model.startswith("gpt2"):
        return False
    if cell.batch.microbatches < exception.get("more_microbatches_than", 0) + 1:
        return False
    limit = exception.get("microbatches_for_each_process")
    return limit is None or cell.batch.microbatches < limit * cell.layout.degree("pp")


def _not_in_threes(axes: dict[str, str | None]) -> bool:
    return any(axes[axis] in found for axis, found in NOT_IN_THREES.items())


def _never(axes: dict[str, str | None]) -> bool:
    """Whether no model, size or number of microbatches would make a combination legal, so that the table need not hold it."""
    if all(axes.values()) and _not_in_threes(axes):
        return True
    for exception in EXCEPTIONS:
        conditions = {"tied", "more_microbatches_than", "microbatches_for_each_process"} & set(exception)
        named = all(axes[axis] in exception[axis] for axis in AXES if axis in exception)
        if not conditions and named and (not exception.get("with_tensor") or axes["tp"]):
            return True
    return False


def test_every_combination_of_the_folders_is_in_the_table():
    present = Counter((c.layout.family, c.model.split("-")[0], c.batch.microbatches, c.clip > 0) for c in table())
    choices = [[None, *names(folder)] for folder in AXES.values()]
    for combination in itertools.product(*choices):
        parts = [f"{axis}:{name}" for axis, name in zip(AXES, combination, strict=True) if name]
        axes = dict(zip(AXES, combination, strict=True))
        if _never(axes):
            continue
        family = "+".join(parts) or "single"
        # Pipelines of several stages on a process meet the other axes once each, not with every count of microbatches.
        once = len(parts) > 1 and (axes["pp"] not in (None, *ONE_STAGE_EACH) or _not_in_threes(axes))
        microbatches, clips = ({4}, (True,)) if once else (MICROBATCHES, (False, True))
        for model, count, clipped in itertools.product(("llama", "gpt2"), microbatches, clips):
            assert present[family, model, count, clipped], f"the parity suite has no cell for {family, model, count, clipped}"


def test_worlds_reach_from_two_to_eight():
    assert {c.layout.devices for c in table()} == {1, 2, 4, 8}


def test_nothing_leaves_the_table_without_a_committed_reason():
    for cell in table():
        reason = illegal(cell, SITE)
        exception = excepted(cell)
        assert (reason is None) == (exception is None), f"{cell.layout}, {cell.batch.microbatches} microbatches: {reason}"
        if exception:
            assert exception["reason"] in reason
            assert exception["link"].startswith("https://")


@pytest.mark.table
@pytest.mark.parametrize(
    "cell",
    [c for c in table() if not excepted(c)],
    ids=lambda c: f"{c.model.split('[')[0]}-{c.layout}-{c.batch.microbatches}-{'clip' if c.clip else 'whole'}",
)
def test_whole_table(run: Callable[..., Record], cell: Cell):
    record = run(cell)
    assert record.status == "ok", record.reason
