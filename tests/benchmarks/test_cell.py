"""Cells as data."""

import json
import shlex

import pytest
from pydantic import ValidationError

from benchmarks.cell import Batch, Cell, Optimizer


def test_equal_cells_have_equal_ids_however_they_were_made():
    one = Cell(layout="dp=2,tp=2:hand", batch=Batch(global_size=4), processes=4, devices=4)
    other = Cell.model_validate(json.loads(one.canonical()))
    assert one == other and one.id == other.id and len(one.id) == 12
    assert json.loads(one.canonical())["batch"] == {"global": 4, "microbatches": 1, "sequence": 64}


def test_any_other_field_gives_another_id():
    ids = {Cell().id, Cell(seed=1).id, Cell(clip=1.0).id, Cell(model="gpt2-tiny").id, Cell(batch=Batch(microbatches=2)).id}
    assert len(ids) == 5


def test_unknown_fields_are_refused():
    with pytest.raises(ValidationError):
        Cell.model_validate({"modle": "llama-tiny"})


def test_rows_of_a_microbatch():
    assert Cell(layout="dp=2", batch=Batch(global_size=24, microbatches=3)).rows_per_microbatch() == 4


def test_the_command_says_all_that_differs_from_the_default():
    cell = Cell(
        model="llama-8b[blocks=4]", layout="dp=2:fsdp[reshard=false]", precision="bf16", clip=1.0, protocol={"measure_steps": 5}
    )
    words = shlex.split(cell.command())
    assert words[:2] == ["hpbench", "run"]
    for flag, value in [
        ("--model", "llama-8b[blocks=4]"),
        ("--layout", "dp=2:fsdp[reshard=false]"),
        ("--precision", "bf16"),
        ("--clip", "1.0"),
        ("--set", "protocol.measure_steps=5"),
    ]:
        assert words[words.index(flag) + 1] == value


@pytest.mark.parametrize(("scaling", "rate"), [("none", 1e-3), ("linear", 4e-3), ("sqrt", 2e-3)])
def test_the_learning_rate_grows_with_the_batch(scaling: str, rate: float):
    optimizer = Optimizer(learning_rate=1e-3, scaling=scaling, base_batch=8)
    assert optimizer.rate(32) == pytest.approx(rate)
    assert optimizer.rate(8) == 1e-3
