"""Plans: what legality said, told in a table."""

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness.plan import describe, judge
from harness.table import duration, techniques, text_table

SITE = Site(kind="cpu", count=2)


def ask(function, payload):
    assert function == "harness.legality:answer"
    cells = [Cell.model_validate(cell) for cell in payload["cells"]]
    return [
        {"processes": 1, "reason": "seed 1 is not wanted"}
        if c.seed == 1
        else {"processes": 1, "reason": None, "flops": c.seed * 10**12, "parameters": 10**6, "memory_bytes": 2**30}
        for c in cells
    ]


def test_cells_get_their_processes_and_reasons():
    cells = [Cell(layout="pp=2:devices", devices=2, processes=2, seed=seed) for seed in range(3)]
    planned = judge(cells, SITE, ask)
    assert [p.cell.processes for p in planned] == [1, 1, 1]
    assert [p.reason for p in planned] == [None, "seed 1 is not wanted", None]
    assert planned[0].cell.id != cells[0].id
    assert planned[1].seconds == 0 < planned[0].seconds < planned[2].seconds


def test_a_reason_is_told_once_for_all_cells_that_have_it():
    cells = [Cell(seed=seed, precision=precision) for seed in (0, 1) for precision in ("fp32", "bf16")]
    text = describe(judge(cells, SITE, ask), SITE)
    assert text.count("seed 1 is not wanted") == 1
    assert f"cannot run: {cells[2].id}, {cells[3].id}: seed 1 is not wanted" in text
    assert "4 cells on 2xcpu: 2 can run, 2 cannot; about " in text


def test_durations_are_rounded_to_what_matters():
    assert [duration(s) for s in (0.4, 59.4, 60, 3599, 7500)] == ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "2 h 5 min"]


def test_techniques_name_what_differs():
    assert techniques(Cell()) == "fp32"
    cell = Cell(precision="bf16", checkpointing="full", clip=1.0, batch={"global": 8, "microbatches": 2})
    assert techniques(cell) == "bf16, checkpointing full, 2 microbatches, clip 1"


def test_columns_are_as_wide_as_their_widest_entry():
    assert text_table(("a", "b"), [("long", "x"), ("y", "")]) == "a     b\nlong  x\ny"
