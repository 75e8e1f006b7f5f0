import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.cell import Batch
from harness.report import plots
from harness.report.frame import frame
from harness.report.plots import draw_all, theme
from harness.report.plots.parity import shares
from harness.report.plots.style import pages
from harness.report.words import CPU_SENTENCE

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def in_theme():
    with theme():
        yield


def drawn(factory, *records, runs=None):
    return draw_all(frame(runs or [factory.run(*records)]))


def bars(axes):
    """Right ends of all bars of a panel."""
    return sorted(round(patch.get_x() + patch.get_width(), 6) for patch in axes.patches)


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_every_cell_has_its_slot_and_only_ok_ones_a_figure(factory):
    (picture,) = drawn(factory, *factory.every_kind())["Throughput"]
    (axes,) = picture.figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "single", "dp=2:ddp", "dp=2:fsdp", "dp=2:zero1", "pp=2:1f1b", "pp=2:gpipe", "tp=2:hand", "dp=4:ddp", "dp=4:fsdp",
        "tp=4:hand", "dp=8:ddp",
    ]  # fmt: skip
    assert words(picture.figure) == [
        "1,000", "1,800", "1,700", "diverged", "timed out", "crashed", "1,500 not comparable", "3,000", "out of memory",
        "skipped", "4,000",
    ]  # fmt: skip
    reach = 4000 * 1.05 * 1.28
    assert bars(axes) == sorted([1000, 1800, 1700, 1500, 3000, 4000, *[round(reach * 0.04, 6)] * 5])


def test_intervals_are_drawn_where_they_are(factory):
    (picture,) = drawn(factory, factory.record(tokens=1000, spread=0.05))["Throughput"]
    (interval,) = picture.figure.axes[0].containers[-1].lines[2]
    assert interval.get_segments()[0][:, 0].tolist() == [950, 1050]


def test_memory_is_stacked_by_what_it_holds(factory):
    (picture,) = drawn(factory, factory.record(parts=(1, 2, 3, 4, 5)))["Peak memory"]
    assert bars(picture.figure.axes[0]) == [1, 3, 6, 10, 15]
    assert words(picture.figure) == ["15"]
    assert "MiB" in picture.figure.axes[0].get_xlabel()


def test_models_and_precisions_have_pictures_of_their_own(factory):
    records = [factory.record(model=m, precision=p) for m in ("llama-tiny", "gpt2-tiny") for p in ("fp32", "bf16")]
    names = {picture.name for picture in drawn(factory, *records)["Throughput"]}
    assert names == {f"throughput-{m}-{p}" for m in ("llama-tiny", "gpt2-tiny") for p in ("fp32", "bf16")}


def test_techniques_have_panels_and_what_was_not_asked_is_said(factory):
    records = [factory.record(), factory.record(checkpointing="full"), factory.record("dp=2:ddp")]
    (picture,) = drawn(factory, *records)["Throughput"]
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == ["fp32", "fp32, full checkpointing"]
    assert words(picture.figure).count("not in the suite") == 1


def test_many_cells_are_cut_into_pages_of_bounded_height(factory):
    records = [factory.record("dp=2:ddp", batch=Batch(global_size=2 * n)) for n in range(1, 81)]
    pictures = drawn(factory, *records)["Throughput"]
    assert [len(picture.data) for picture in pictures] == [27, 26, 27]
    assert all(picture.figure.get_size_inches()[1] < 9 for picture in pictures)
    assert pictures[0].title.endswith("(1 of 3)") and len({picture.name for picture in pictures}) == 3


def test_two_runs_stand_side_by_side(factory):
    runs = [factory.run(factory.record(tokens=t), name=name) for name, t in (("a", 1000), ("b", 2000))]
    (picture,) = drawn(factory, runs=runs)["Throughput"]
    (axes,) = picture.figure.axes
    assert bars(axes) == [1000, 2000]
    assert {text.get_text() for text in axes.get_legend().get_texts()} >= {"a", "b"}


def test_scaling_draws_points_ideal_and_what_is_lost(factory):
    records = [
        factory.record(tokens=1000),
        factory.record("dp=2:ddp", tokens=1800),
        factory.record("dp=4:ddp", tokens=3000),
        factory.record("dp=8:ddp", status="oom"),
    ]
    (picture,) = drawn(factory, *records)["Scaling"]
    upper, lower = picture.figure.axes
    ideal = next(line for line in upper.lines if line.get_label() == "ideal")
    assert list(ideal.get_xdata()) == [1, 4] and list(ideal.get_ydata()) == [1000, 4000]
    lost = next(line for line in upper.lines if line.get_marker() == "x")
    assert list(lost.get_xdata()) == [8]
    assert [list(line.get_ydata()) for line in lower.lines if line.get_marker() == "o"] == [[1.0, 0.9, 0.75]]
    assert list(picture.data["throughput"]) == [1000, 1800, 3000]


def test_layouts_on_one_device_count_do_not_hide_curves(factory):
    records = [factory.record(layout) for layout in ("single", "dp=2:ddp", "dp=4:ddp", "tp=2:hand,dp=2:ddp")]
    (picture,) = drawn(factory, *records)["Scaling"]
    assert set(picture.data["series"]) == {"dp:ddp"}


def test_parity_is_the_share_of_the_tolerance(factory):
    marks = shares(frame([factory.run(factory.record(errors=(2e-7, 1e-4, 0.0)))]))
    assert dict(zip(marks["quantity"], marks["share"], strict=True)) == {
        "loss": pytest.approx(0.2), "gradient norm": pytest.approx(10), "parameter update": 0,
    }  # fmt: skip


def test_parity_shows_every_cell(factory):
    (picture,) = drawn(factory, *factory.every_kind())["Parity"]
    (axes,) = picture.figure.axes
    assert len(axes.get_yticklabels()) == 11
    ends = {"diverged", "crashed", "timed out", "out of memory", "skipped", "not comparable", "passed"}
    assert ends == set(words(picture.figure))
    assert picture.data["cell_id"].nunique() == 11


def test_cpu_pictures_say_what_they_do_not_do(factory):
    for pictures in drawn(factory, *factory.every_kind()).values():
        assert all(CPU_SENTENCE in picture.notes and "oversubscribed" in picture.notes for picture in pictures)
    (picture,) = drawn(factory, factory.record(caveats=()))["Throughput"]
    assert picture.notes == ""


def test_saved_files_hold_title_caption_and_caveats(factory, tmp_path):
    (picture,) = drawn(factory, factory.record())["Throughput"]
    picture.save(tmp_path)
    assert (tmp_path / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
    root = ElementTree.parse(tmp_path / f"{picture.name}.svg").getroot()
    text = " ".join(element.text for element in root.iter(f"{SVG}text") if element.text)
    assert picture.title in text and "longer is faster" in text and "does not rank them" in text


def test_the_same_records_give_the_same_bytes(factory):
    first, second = (drawn(factory, *factory.every_kind())["Throughput"][0].inline() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("heading", ["Throughput", "Peak memory", "Parity"])
def test_all_failed(factory, heading):
    records = [factory.record(status="crashed", reason="x"), factory.record("dp=2:ddp", status="timeout", reason="y")]
    (picture,) = drawn(factory, *records)[heading]
    assert {"crashed", "timed out"} <= set(words(picture.figure))
    assert picture.inline().startswith("<svg")


def test_no_records_no_pictures(factory):
    assert drawn(factory) == {}


def test_a_dollar_is_a_dollar(factory):
    (picture,) = drawn(factory, factory.record(model=r"$\frac{$ <b>&"))["Throughput"]
    drawing = picture.inline()
    ElementTree.fromstring(drawing)
    assert "<b>" not in drawing


def test_pages_are_even():
    assert pages(list("abcdefg"), 3) == [["a", "b"], ["c", "d", "e"], ["f", "g"]]
    assert pages([], 3) == []


def test_the_limit_of_a_device_is_a_line_where_bars_come_near_it_and_words_where_they_do_not(factory):
    for limit, near in ((40 * 2**20, True), (80 * 2**30, False)):
        run = factory.run(factory.record(parts=(8, 8, 8, 4, 2)))
        table = frame([replace(run, environment={"site": {"memory_bytes": limit}})])
        (picture,) = draw_all(table)["Peak memory"]
        (axes,) = picture.figure.axes
        lines = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
        assert lines == ([40] if near else [])
        assert ("limit 80 GiB, off the axis" in axes.get_xlabel()) != near
        assert set(picture.data["device_memory_bytes"]) == {limit}


def test_the_front_is_what_nothing_beats(factory):
    records = [
        factory.record("single", tokens=1000, parts=(8, 8, 16, 4, 4)),
        factory.record("dp=2:ddp", tokens=2000, parts=(8, 8, 16, 4, 4)),
        factory.record("dp=2:fsdp", tokens=1500, parts=(4, 4, 8, 2, 2)),
        factory.record("dp=4:fsdp", tokens=1400, parts=(2, 2, 4, 1, 1)),
        factory.record("tp=2:hand", tokens=9000, parts=(1, 1, 1, 1, 1), verdict="not comparable", reason="widths differ"),
        factory.record("tp=4:hand", status="oom", reason="no room"),
    ]
    (picture,) = drawn(factory, *records)["Memory against throughput"]
    numbers = picture.data.set_index("label")["front"].dropna()
    assert dict(numbers) == {"dp=4:fsdp": 1, "dp=2:fsdp": 2, "dp=2:ddp": 3}
    (axes,) = picture.figure.axes
    marks = [line for line in axes.lines if line.get_linestyle() == "None"]
    points = [point for line in marks for point in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    assert sorted(points) == [(5, 9000), (10, 1400), (20, 1500), (40, 1000), (40, 2000)]
    (front,) = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
    assert list(front.get_xdata()) == [10, 20, 40] and list(front.get_ydata()) == [1400, 1500, 2000]
    text = " ".join(words(picture.figure))
    assert "1  dp=4:fsdp in fp32: 10 MiB, 1,400 tokens/s" in text and "out of memory: tp=4:hand in fp32" in text


def test_slopes_are_between_cells_that_differ_in_nothing_else(factory):
    records = [
        factory.record("dp=2:ddp", tokens=1000, parts=(4, 4, 8, 4, 0)),
        factory.record("dp=2:ddp", tokens=1500, parts=(4, 4, 8, 2, 0), precision="bf16"),
        factory.record("dp=2:ddp", tokens=700, parts=(4, 4, 8, 1, 0), checkpointing="full"),
        factory.record("dp=4:ddp", tokens=3000),
        factory.record("dp=4:ddp", precision="bf16", status="crashed", reason="x", phase="build"),
        factory.record("dp=8:ddp", tokens=3000),
    ]
    pictures = {picture.name: picture for picture in drawn(factory, *records)["What a technique buys"]}
    assert set(pictures) == {"gains-llama-tiny-fp32-to-bf16-none", "gains-llama-tiny-none-to-full-fp32"}
    picture = pictures["gains-llama-tiny-fp32-to-bf16-none"]
    left, right = picture.figure.axes
    assert [list(line.get_ydata()) for line in left.lines] == [[1000, 1500], [3000]]
    assert [list(line.get_ydata()) for line in right.lines] == [[20, 18], [19]]
    text = words(picture.figure)
    assert "dp=2:ddp  ×1.5" in text and "dp=4:ddp  crashed after" in text and "dp=2:ddp  ×0.9" in text
    assert dict(zip(picture.data["layout"], picture.data["throughput_factor"].fillna(0), strict=True)) == {
        "dp=2:ddp": 1.5, "dp=4:ddp": 0,
    }  # fmt: skip


def test_the_map_says_what_fits_where_it_fails_and_why(factory):
    records = [*factory.every_kind(), factory.record("dp=2:ddp", model="gpt2-tiny", parts=(1, 1, 1, 1, 1))]
    (picture,) = drawn(factory, *records)["What fits"]
    text = words(picture.figure)
    squares = {shown.split(" (")[0] for shown in text}
    assert squares >= {"38 MiB", "5 MiB", "OOM, warmup", "crashed, build", "diverged, verify", "timed out, measure", "illegal"}
    assert any("2 key-value heads cannot be cut 4 ways" in shown for shown in text)
    assert len(picture.data) == len(records) and set(picture.data["end"]) == {
        "verified", "not comparable", "out of memory", "skipped", "other",
    }  # fmt: skip


def test_every_picture_counts_the_cells_without_a_figure(factory):
    for heading, pictures in drawn(factory, *factory.every_kind()).items():
        if heading != "Scaling":  # is about the cells of its curves alone
            assert all("crashed (1 of 11)" in picture.notes for picture in pictures), heading


def test_more_rows_than_anyone_reads_are_counted(factory):
    records = [factory.record("dp=2:ddp", tokens=n, batch=Batch(global_size=2 * n)) for n in range(1, 140)]
    records.append(factory.record("tp=2:hand", status="crashed", reason="x"))
    (picture,) = drawn(factory, *records)["Throughput"]
    assert len(picture.data) == 32 and picture.data["throughput"].min() == 108
    assert any("108 more cells: verified (107 of 108), crashed (1 of 108)" in text for text in words(picture.figure))


def test_a_large_table_has_few_pictures_which_say_so(factory, monkeypatch):
    monkeypatch.setattr(plots, "MANY_CELLS", 5)
    records = [
        factory.record(layout, model=m) for m in ("llama-tiny", "gpt2-tiny") for layout in ("single", "tp=2:hand", "dp=2")
    ]
    (picture,) = drawn(factory, *records)["Throughput"]
    assert "Of 6 cells no more pictures of this kind are drawn" in picture.notes


def test_a_picture_s_data_is_a_file(factory, tmp_path):
    for pictures in drawn(factory, *factory.every_kind(), factory.record(precision="bf16")).values():
        for picture in pictures:
            picture.save(tmp_path)
            written = pd.read_csv(tmp_path / f"{picture.name}.csv")
            assert len(written) == len(picture.data) > 0
            assert list(written.columns) == list(picture.data.columns)
