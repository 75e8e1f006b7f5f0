import pytest

from benchmarks.cell import Batch
from benchmarks.errors import UsageError
from harness import store
from harness.report.explain import explain, tell


def test_a_measured_cell(factory):
    record = factory.record("pp=2:gpipe,dp=2:ddp", batch=Batch(global_size=8, microbatches=4), clip=1.0, tokens=1000)
    text = tell(record)
    for part in (
        f"Cell {record.cell_id}: llama-tiny as pp=2:gpipe,dp=2:ddp\nended ok at",
        "4 devices as pp=2:gpipe,dp=2:ddp by 4 processes, in fp32 without checkpointing",
        "8 samples of 64 tokens, in 4 microbatches per data rank; gradients clipped to a global norm of 1",
        "passed: 3 steps of plain SGD",
        "loss within 2.0e-07 (tolerance 1.0e-06)",
        "worst parameter is block0.norm.weight",
        "true gradient norm was 3 or more",
        "over dp, rank 0 called in one step 2 all_reduce (3 MiB)",
        "the stages were embedding block0 | block1 head",
        "tokens per second: 1,000 tokens/s (95 % interval 950 to 1,050)",
        "peak memory: 19 MiB; ranks from 9.5 MiB to 19 MiB",
        "cpu: gloo on shared cores",
        record.cell.command(),
    ):
        assert part in text, part


def test_a_cell_of_images(factory):
    text = tell(factory.record(model="mlp-tiny"))
    assert "train mlp-tiny on images of handwritten digits" in text and "takes 8 samples, each" in text


def test_a_model_of_another_version_is_taken_for_one_of_text(factory):
    assert "8 samples of 64 tokens" in tell(factory.record(model="llama-of-old"))


def test_a_failed_cell(factory):
    reason = "rank 3 ran out of memory"
    text = tell(factory.record(status="oom", phase="warmup", failed_rank=3, reason=reason, log_tail="Traceback"))
    for part in ("out of memory in phase warmup on rank 3", "because: rank 3 ran out", "it did not come so far", "Traceback"):
        assert part in text
    assert "Figures" not in text


def test_a_diverged_cell_shows_no_figures(factory):
    ok = factory.record()
    text = tell(ok.model_copy(update={"status": "diverged", "reason": "update error 0.7"}))
    assert "update error 0.7" in text and "tokens/s" not in text


def test_a_cell_is_found_by_the_beginning_of_its_id(factory, tmp_path):
    records = factory.every_kind()
    run = store.read(factory.store(tmp_path / "run", *records))
    for record in records:
        assert explain(run, record.cell_id) == explain(run, record.cell_id[:8].upper()) == tell(record)


@pytest.mark.parametrize("cell", ["nonsense", ""])
def test_an_unknown_cell(factory, tmp_path, cell):
    run = store.read(factory.store(tmp_path / "run", *factory.every_kind()))
    with pytest.raises(UsageError, match="it has 11 cells .* take an id from"):
        explain(run, cell)


def test_an_ambiguous_beginning(factory, tmp_path):
    records = [r.model_copy(update={"cell_id": f"abc{i}"}) for i, r in enumerate(factory.every_kind())]
    with pytest.raises(UsageError, match="11 cells .* give more characters"):
        explain(store.read(factory.store(tmp_path / "run", *records)), "abc")
