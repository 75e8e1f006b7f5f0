"""When a gate stops, and what it measures until then."""

import pytest

from harness.compare import Terms
from harness.gate.rounds import settle
from tests.harness.runs import made

TERMS = Terms(
    spreads={made(layout).cell_id: 0.01 for layout in ("single", "dp=2:ddp")}, looking=True, environments_may_differ=True
)


def gate(figures, *, pairs=5, most=10):
    """A gate whose n-th run of a side gives `figures(side, n)`: layout -> fields of the record; what was asked for, and
    words."""
    asked, progress = [], []

    def measure(name, number, cells):
        found = figures(name, number)
        chosen = None if cells is None else {cell.id for cell in cells}
        asked.append((name, number, None if cells is None else len(cells)))
        records = [made(layout, **fields) for layout, fields in found.items()]
        return [record for record in records if chosen is None or record.cell_id in chosen]

    comparison = settle(measure, lambda: TERMS, pairs=pairs, most=most, progress=lambda *seen: progress.append(seen))
    return asked, progress, comparison


def wobbling(n):
    return 1 + 0.001 * (n % 3)


def test_it_stops_after_the_fewest_pairs_when_all_is_clear():
    asked, progress, comparison = gate(
        lambda name, n: {"single": {"seconds": wobbling(n)}, "dp=2:ddp": {"seconds": wobbling(n)}}
    )
    assert len(asked) == 10 and progress[-1] == (5, 0) and comparison.exit_status == 0
    assert [name for name, *_ in asked[:4]] == ["base", "head", "head", "base"]


def test_only_cells_that_are_not_clear_are_measured_again():
    def figures(name, n):
        between = 1.015 if name == "head" else 1.0  # more than half of the 2 % that counts, and less than all of it
        return {"single": {"seconds": wobbling(n)}, "dp=2:ddp": {"seconds": wobbling(n) * between}}

    asked, progress, comparison = gate(figures)
    assert [cells for *_, cells in asked] == [None] * 10 + [1] * 10
    words = {v.name: v.word for v in comparison.verdicts if v.metric == "step_seconds"}
    assert words == {"llama-tiny single fp32": "stable", "llama-tiny dp=2:ddp fp32": "inconclusive"}
    assert comparison.exit_status == 2


def test_what_one_pair_tells_is_told_after_one_pair_where_that_is_all_there_is():
    asked, _, comparison = gate(lambda name, n: {"single": {"peak": 1001 if name == "head" else 1000}}, pairs=1, most=1)
    assert len(asked) == 2 and comparison.exit_status == 1


@pytest.mark.parametrize(("side", "word", "status"), [("head", "errored", 1), ("base", "missing baseline", 2)])
def test_a_side_that_fails_is_clear(side, word, status):
    def figures(name, n):
        return {"single": {"status": "crashed" if name == side else "ok"}}

    asked, _, comparison = gate(figures)
    assert [v.word for v in comparison.verdicts] == [word] and comparison.exit_status == status and len(asked) == 10


def test_cells_that_fail_alike_are_counted():
    _, _, comparison = gate(lambda name, n: {"single": {"status": "skipped"}, "dp=2:ddp": {"seconds": wobbling(n)}})
    assert comparison.without_figures == {"skipped": 1} and comparison.exit_status == 0
