import pytest

from benchmarks.cell import Batch
from harness.report.answers import answers, outcome
from harness.report.frame import frame


def found(factory, *records):
    return answers(frame([factory.run(*records)]))


def test_fastest_and_leanest_with_reasons(factory):
    (answer,) = found(factory, *factory.every_kind())
    assert (answer.asked, answer.verified, answer.work) == (11, 5, "batch 8×64")
    assert answer.fastest.name == "dp=8:ddp in fp32 on 8 devices"
    assert answer.fastest.why == (
        "4,000 tokens/s (95 % interval 3,800 to 4,200); 4 times one device in fp32; "
        "ahead of dp=4:ddp in fp32 on 4 devices (3,000 tokens/s)."
    )
    # tp=2:hand needs as little, and is not verified
    assert answer.leanest.name == "dp=2:fsdp in fp32 on 2 devices"
    assert answer.leanest.why == (
        "19 MiB at the peak of its largest rank; 50% of one device in fp32; it saves most on optimizer state, 8 MiB; "
        "it trains at 42% of the fastest cell's speed."
    )


def test_overlapping_intervals_have_no_winner(factory):
    (answer,) = found(factory, factory.record("dp=2:ddp", tokens=1000), factory.record("tp=2:hand", tokens=960))
    assert "cannot be told from tp=2:hand" in answer.fastest.why


def test_different_batches_are_not_set_against_each_other(factory):
    records = [factory.record(batch=Batch(global_size=n)) for n in (8, 16)]
    assert [answer.work for answer in found(factory, *records)] == ["batch 8×64", "batch 16×64"]


def test_unverified_cells_win_nothing(factory):
    (answer,) = found(factory, factory.record(tokens=9e9, verdict="not comparable"), factory.record("dp=2:ddp", status="oom"))
    assert answer.fastest is None and answer.leanest is None


@pytest.mark.parametrize("count", [0, 1])
def test_outcome(factory, count):
    table = frame([factory.run(*[factory.record()] * count)])
    assert outcome(table) == ("1 cell: 1 measured and verified." if count else "No cell has a record.")
