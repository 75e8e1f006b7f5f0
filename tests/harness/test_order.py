"""The order of a run that has a budget."""

import random

from benchmarks.cell import Cell
from benchmarks.layout import Layout
from harness.order import by_information
from harness.plan import Planned


def planned(model: str, layout: str, reason: str | None = None, **fields) -> Planned:
    spread = Layout.parse(layout)
    return Planned(cell=Cell(model=model, layout=spread, devices=spread.devices, **fields), reason=reason, seconds=1.0)


def names(cells: list[Planned]) -> list[str]:
    return [f"{p.cell.model.split('-')[0]} {p.cell.layout} {p.cell.precision}" for p in cells]


LAYOUTS = ["single", "dp=2:ddp", "dp=4:ddp", "dp=4:fsdp", "tp=4:hand", "tp=2:hand,dp=2:ddp"]


def test_families_then_bases_then_worlds_then_techniques():
    cells = [planned("llama-tiny", layout, precision="bf16") for layout in LAYOUTS]
    cells += [planned("llama-tiny", "dp=4:ddp"), planned("llama-tiny", "single")]
    assert names(by_information(cells)) == [
        "llama dp=4:ddp bf16",  # one of each axis, in the technique of most cells, on the largest world
        "llama tp=4:hand bf16",
        "llama dp=4:fsdp bf16",
        "llama tp=2:hand,dp=2:ddp bf16",
        "llama single bf16",
        "llama dp=2:ddp bf16",
        "llama single fp32",
        "llama dp=4:ddp fp32",
    ]


def test_models_take_turns_and_what_cannot_run_comes_last():
    cells = [planned(model, layout) for model in ("llama-tiny", "gpt2-tiny") for layout in ("dp=2:ddp", "tp=2:hand")]
    cells.insert(0, planned("llama-tiny", "tp=8:hand", reason="it cannot be cut"))
    assert names(by_information(cells)) == [
        "gpt2 dp=2:ddp fp32",
        "llama dp=2:ddp fp32",
        "gpt2 tp=2:hand fp32",
        "llama tp=2:hand fp32",
        "llama tp=8:hand fp32",
    ]


def test_the_order_does_not_depend_on_the_order_given():
    cells = [planned("llama-tiny", layout, seed=seed) for layout in LAYOUTS for seed in (0, 1)]
    shuffled = cells[:]
    random.Random(1).shuffle(shuffled)
    assert by_information(shuffled) == by_information(cells)
    assert sorted(p.cell.id for p in by_information(cells)) == sorted(p.cell.id for p in cells)
