"""Plans: what legality said, told in a table."""

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness import estimate
from harness.plan import describe, judge
from harness.table import duration, techniques, text_table

SITE = Site(kind="cpu", count=2)
COUNTS = {"parameters": 10**6, "verified_parameters": 10**6}


def ask(function, payload):
    assert function == "harness.legality:answer"
    cells = [Cell.model_validate(cell) for cell in payload["cells"]]
    return [
        {"processes": 1, "reason": "seed 1 is not wanted"}
        if c.seed == 1
        else {"processes": 1, "reason": None, "memory_bytes": 2**30, "flops": c.seed * 10**12, **COUNTS}
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


def test_what_is_not_expected_to_fit_is_marked_and_runs():
    small, large = Site(kind="cuda", count=1, memory_bytes=2**29), Site(kind="cuda", count=1, memory_bytes=2**30)
    cells = [Cell(seed=0), Cell(seed=1)]
    (row, *_), text = rows(describe(judge(cells, small, ask), small))
    assert "1 GiB, expected not to fit" in row and row.endswith(" yes")
    assert "expected not to fit 1xcuda:0.5GiB: 1 cell, which run nevertheless, as evidence" in text
    assert "expected not to fit" not in describe(judge(cells, large, ask), large)
    # The "devices" of a CPU share its memory.
    shared = Site(kind="cpu", count=2, memory_bytes=2**30)
    assert "expected not to fit" in describe(judge([Cell(layout="dp=2:ddp", devices=2, processes=2)], shared, ask), shared)


def rows(text: str) -> tuple[list[str], str]:
    return text.splitlines()[1:], text


def test_a_budget_leaves_out_what_would_end_after_it():
    cells = [Cell(seed=0), Cell(seed=0, precision="bf16"), Cell(seed=1), Cell(seed=30)]
    planned = judge(cells, SITE, ask)
    short = sum(p.seconds for p in planned[:2])
    found, text = rows(describe(planned, SITE, budget_seconds=short + 1))
    assert [line.split()[-1] for line in found[:4]].count("yes") == 2
    assert any(line.startswith(cells[3].id) and line.endswith("left out") for line in found)
    assert "1 cell" in next(line for line in found if line.startswith("left out for the budget of "))
    assert "2 cannot" not in text and f"about {duration(short)}" in text


def test_an_estimate_grows_with_what_a_cell_has_to_do():
    def seconds(site=SITE, parameters=10**8, verified_parameters=10**8, fits=True, **fields):
        given = {"flops": 10**12, "parameters": parameters, "verified_parameters": verified_parameters, "fits": fits}
        return estimate.seconds(Cell(**fields), site=site, **given)

    assert seconds(checkpointing="full") > seconds() < seconds(precision="bf16") < 2 * seconds()
    assert seconds(layout="dp=8:ddp", devices=8, processes=8) > seconds(layout="dp=2:ddp", devices=2, processes=2)
    assert seconds(verified_parameters=10**7) < seconds() < seconds(parameters=10**9, verified_parameters=10**9)
    assert seconds(protocol={"measure_steps": 0}) < seconds() / 2
    assert seconds(site=Site(kind="cuda", count=2)) < seconds()
    assert seconds(fits=False) < seconds() / 2


def test_durations_are_rounded_to_what_matters():
    assert [duration(s) for s in (0.4, 59.4, 60, 3599, 7500)] == ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "2 h 5 min"]


def test_techniques_name_what_differs():
    assert techniques(Cell()) == "fp32"
    cell = Cell(precision="bf16", checkpointing="full", clip=1.0, batch={"global": 8, "microbatches": 2})
    assert techniques(cell) == "bf16, checkpointing full, 2 microbatches, clip 1"


def test_columns_are_as_wide_as_their_widest_entry():
    assert text_table(("a", "b"), [("long", "x"), ("y", "")]) == "a     b\nlong  x\ny"
