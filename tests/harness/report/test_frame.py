import pandas as pd
import pytest

from benchmarks.cell import Batch
from harness.record import Metric
from harness.report.frame import frame

MIB = 2**20


def test_one_row_per_cell_with_typed_columns(factory):
    table = frame([factory.run(*factory.every_kind())])
    assert len(table) == 11
    assert table["devices"].dtype == "Int64" and table["tokens_per_second"].dtype == "float64"
    assert table["verified"].dtype == bool
    assert table["cell_id"].is_unique


def test_figures_are_those_of_ok_cells_alone(factory):
    record = factory.record(status="ok")
    lost = record.model_copy(update={"status": "diverged"})
    assert frame([factory.run(record)]).loc[0, "tokens_per_second"] == 1000
    row = frame([factory.run(lost)]).loc[0]
    assert pd.isna(row["tokens_per_second"]) and not row["measured"] and row["word"] == "diverged"


@pytest.mark.parametrize("verification", [None, "failed"])
def test_ok_without_a_passed_verification_shows_nothing(factory, verification):
    record = factory.record()
    check = record.verification.model_copy(update={"verdict": "failed"}) if verification else None
    row = frame([factory.run(record.model_copy(update={"verification": check}))]).loc[0]
    assert not row["measured"] and row["word"] == "unverified" and pd.isna(row["peak_memory_bytes"])


def test_not_comparable_is_measured_and_not_verified(factory):
    row = frame([factory.run(factory.record(verdict="not comparable"))]).loc[0]
    assert row["measured"] and not row["verified"] and row["word"] == "not comparable"


def test_words_of_every_end(factory):
    table = frame([factory.run(*factory.every_kind())])
    assert dict(zip(table["layout"], table["word"], strict=True)) == {
        "single": "", "dp=2:ddp": "", "dp=2:fsdp": "", "dp=4:ddp": "", "dp=8:ddp": "", "tp=2:hand": "not comparable",
        "dp=2:zero1": "diverged", "pp=2:1f1b": "timed out", "pp=2:gpipe": "crashed", "dp=4:fsdp": "out of memory",
        "tp=4:hand": "skipped",
    }  # fmt: skip


def test_anatomy_is_of_the_rank_with_the_largest_peak(factory):
    record = factory.record("dp=2:ddp")
    metrics = dict(record.metrics)
    name = "memory_activations_bytes"
    metrics["peak_memory_bytes"] = Metric(value=9 * MIB, unit="bytes", per_rank=[7 * MIB, 9 * MIB])
    metrics[name] = Metric(value=5 * MIB, unit="bytes", per_rank=[5 * MIB, 3 * MIB])
    row = frame([factory.run(record.model_copy(update={"metrics": metrics}))]).loc[0]
    assert row["peak_memory_bytes"] == 9 * MIB and row[name] == 3 * MIB


def test_series_is_the_layout_without_degrees(factory):
    table = frame([factory.run(factory.record("pp=2:gpipe,tp=2:hand,dp=2:fsdp[reshard=false]"))])
    assert table.loc[0, "series"] == "pp:gpipe,tp:hand,dp:fsdp[reshard=false]"
    assert table.loc[0, "axes"] == "pp+tp+dp"


def test_labels_hold_what_tells_cells_of_a_model_apart_and_nothing_else(factory):
    cut = Batch(global_size=8, microbatches=4)
    run = factory.run(factory.record(), factory.record("pp=2:gpipe", batch=cut), factory.record(clip=1.0))
    assert set(frame([run])["label"]) == {"single", "pp=2:gpipe · m=4", "single · clip 1"}


def test_cells_that_differ_in_their_protocol_alone_are_told_apart_by_id(factory):
    long = {"measure_steps": 99}
    table = frame([factory.run(factory.record(), factory.record(protocol=long))])
    assert table["label"].is_unique
    assert all(label.endswith(cell_id[:6]) for label, cell_id in zip(table["label"], table["cell_id"], strict=True))


def test_control_characters_do_not_reach_labels(factory):
    table = frame([factory.run(factory.record(model="llama\x1b[31m\n-tiny"))])
    assert table.loc[0, "model"] == "llama [31m -tiny"


def test_an_empty_run_has_the_columns(factory):
    table = frame([factory.run()])
    assert len(table) == 0 and {"run", "tokens_per_second", "verified", "label"} <= set(table)


def test_images_are_counted_in_samples(factory):
    seconds = Metric(value=0.5, unit="s")
    rates = {"samples_per_second": Metric(value=16, unit="samples/s", low=15, high=17), "step_seconds": seconds}
    image = factory.record("dp=2:ddp", model="mlp-tiny").model_copy(update={"metrics": rates})
    lost = factory.record("dp=2:fsdp", model="mlp-tiny", status="oom")
    table = frame([factory.run(factory.record("single", tokens=1000), image, lost)]).set_index(["model", "layout"])
    assert table["throughput"].tolist() == [1000, 16, pytest.approx(float("nan"), nan_ok=True)]
    assert table.loc[("mlp-tiny", "dp=2:ddp"), ["throughput_low", "throughput_high"]].tolist() == [15, 17]
    assert table["throughput_unit"].tolist() == ["tokens/s", "samples/s", "samples/s"]
    assert table["work"].tolist() == ["batch 8×64", "batch 8", "batch 8"]


def test_a_metric_that_is_called_like_a_column_does_not_take_its_place(factory):
    record = factory.record("single", tokens=1000)
    record.metrics["throughput"] = Metric(value=7, unit="tokens/s")
    assert frame([factory.run(record)]).loc[0, "throughput"] == 1000
