"""Cells drawn at random from the whole space of what is legal, on up to eight processes: none may crash, hang or diverge.

./run_all.sh test tests/parity/test_random.py -m "slow or not slow"        all 200 of them, half an hour on two cores
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from benchmarks.cell import CHECKPOINTING, Cell, Offload
from benchmarks.compose import illegal, processes
from benchmarks.errors import UsageError
from benchmarks.layout import Layout
from benchmarks.registry import AXES, load, names
from harness.record import Record
from tests.parity.conftest import SITE, SLOW, cell

COUNT, BY_DEFAULT, MOST_PROCESSES = 200, 20, 8
MODELS = ("llama-tiny[blocks=8]", "gpt2-tiny[blocks=8]", "mlp-tiny[blocks=8]", "resnet-tiny[synchronised=true]")
DEGREES = {"pp": (2, 2, 4), "tp": (2,), "dp": (2, 2, 4)}


def knobs(strategy: type, draw: random.Random) -> str:
    """Some values of the knobs that have few, as they are written."""
    hints = get_type_hints(strategy)
    written = []
    for field in dataclasses.fields(strategy):
        choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
        choices = (True, False) if hints[field.name] is bool else choices
        if choices and draw.random() < 0.5:
            written.append(f"{field.name}={str(draw.choice(choices)).lower()}")
    return f"[{','.join(written)}]" if written else ""


def layout(draw: random.Random) -> str:
    """A layout of one to three axes, legal or not."""
    axes = [axis for axis in AXES if draw.random() < 0.6]
    written = []
    for axis in axes:
        name = draw.choice(names(AXES[axis]))
        strategy, degree = load(AXES[axis], name).Strategy, draw.choice(DEGREES[axis])
        degrees = draw.choice(("2x1", "1x2", "2x2")) if strategy.nested else degree
        written.append(f"{axis}={degrees}:{name}{knobs(strategy, draw)}")
    return ",".join(written) or "single"


def drawn(seed: int) -> Iterator[Cell]:
    """Legal cells, without end; torch.compile, which takes a minute a cell, has tests of its own."""
    draw = random.Random(seed)
    while True:
        fields: dict[str, Any] = {
            "layout": layout(draw),
            "model": draw.choice(MODELS),
            "precision": draw.choice(("fp32", "bf16", "fp16")),
            "checkpointing": draw.choice(CHECKPOINTING),
            "offload": draw.choice(get_args(Offload)),
            "clip": draw.choice((0.0, 1.0)),
            "batch": {"global": 32, "microbatches": draw.choice((1, 2, 4, 8)), "sequence": 32},
        }
        # The first loss scale may be too large for some steps, which are left out until it has halved often enough.
        warmup = 8 if fields["precision"] == "fp16" else 1
        fields["protocol"] = {"warmup_steps": warmup, "measure_steps": 1, "measure_seconds": 0, "probe": False}
        try:
            if processes(Layout.parse(fields["layout"])) > MOST_PROCESSES:
                continue
            found = cell(**fields)
            if illegal(found, SITE) is None:
                yield found
        except UsageError:  # knobs that exclude each other
            continue


def first(count: int, seed: int) -> list[Cell]:
    """So many different cells."""
    cells: dict[str, Cell] = {}
    for found in drawn(seed):
        cells.setdefault(found.id, found)
        if len(cells) == count:
            return list(cells.values())
    raise AssertionError


def parameters() -> Iterator[Any]:
    """The cells; by default the first of those that start soon."""
    default = 0
    for found in first(COUNT, seed=20251):
        quick = default < BY_DEFAULT and not any(name in str(found.layout) for name in SLOW)
        default += quick
        yield pytest.param(found, marks=[] if quick else pytest.mark.slow, id=found.id)


@pytest.mark.parametrize("c", parameters())
def test_a_legal_cell_agrees_with_one_device(run: Callable[..., Record], c: Cell):
    record = run(c)
    assert record.status == "ok", f"{c.command()}: {record.reason}"
