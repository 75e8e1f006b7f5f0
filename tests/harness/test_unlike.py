"""Which cells are said to keep something in another dtype than those beside them."""

import pytest

from harness import store
from harness.record import Observed
from harness.report import runs
from harness.report.frame import frame
from harness.report.plots.throughput import throughput
from harness.run import closing
from harness.unlike import unlike
from tests.harness.report.conftest import store_run
from tests.harness.runs import made

FULL = {"parameters": "fp32", "gradients": "fp32", "optimizer_state": "fp32"}


def seen(layout, status="ok", **dtypes):
    record = made(layout, status=status)
    return record.model_copy(update={"observed": Observed(dtypes={**FULL, **dtypes}) if status == "ok" else None})


CELLS = [
    seen("single"),
    seen("dp=2:ddp", reduction="fp32"),
    seen("dp=2:fsdp", reduction="fp32"),
    seen("dp=2:zero1", reduction="bf16", optimizer_state="bf16"),
    seen("dp=2:zero2", status="crashed"),
]
SENTENCE = "dtypes: reduction bf16, where others of fp32 have fp32; optimizer state bf16, where others of fp32 have fp32"


def test_what_most_cells_have_is_the_measure():
    assert unlike(CELLS) == {CELLS[3].cell_id: SENTENCE}
    assert unlike(CELLS[:3]) == {} and unlike([]) == {}


@pytest.mark.parametrize("order", [1, -1])
def test_between_two_the_single_device_is(order):
    pair = [seen("single"), seen("dp=2:ddp", optimizer_state="bf16")]
    assert list(unlike(pair[::order])) == [pair[1].cell_id]


def test_precisions_are_not_held_against_each_other():
    other = CELLS[0].model_copy(update={"cell": CELLS[0].cell.model_copy(update={"precision": "bf16"})})
    assert unlike([*CELLS[:3], other.model_copy(update={"observed": Observed(dtypes={**FULL, "parameters": "bf16"})})]) == {}


def test_it_is_flagged_in_the_report_and_its_pictures_and_at_the_end_of_the_run(tmp_path):
    folder = store_run(tmp_path / "run", *CELLS)
    table = frame(runs.read([folder]))
    assert dict(zip(table["layout"], table["caveat_words"], strict=True))["dp=2:zero1"].split() == ["dtypes"]
    (picture,) = throughput(table)
    said = [text.get_text() for axes in picture.figure.axes for text in axes.texts]
    assert sum("(dtypes)" in text for text in said) == 1
    assert "dtypes (1 of 5)" in picture.notes
    asked = [{"cell": record.cell.model_dump(mode="json")} for record in CELLS]
    store.write_json(folder / store.RUN, {**store.read(folder).run, "cells": asked})
    assert f"{SENTENCE}: {CELLS[3].cell_id} llama-tiny dp=2:zero1" in closing(folder)
    assert not any("dtypes" in caveat for record in store.read(folder).records for caveat in record.caveats)
