"""The page in a real browser: what a reader sees, clicks and types."""

import json
import re

import pytest

from harness.record import Metric
from harness.report import draw
from harness.report.words import amount, number
from tests.harness.report import chromium, many

pytestmark = pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing()))

MARKUP = "</script></noscript><img src=x onerror=window.hit=1><b>bold</b> {{ 7*7 }}"
LONG = "<i>why</i> " + "x" * 1_000_000

ROWS = "[...document.querySelectorAll('#cells-table tr.cell')]"
COLUMN = ROWS + ".map(row => row.cells[%d].textContent)"


@pytest.fixture(scope="module")
def tab():
    with chromium.tab() as opened:
        yield opened


@pytest.fixture(scope="module")
def run(factory, tmp_path_factory):
    """Cells that ended in every way."""
    folder = factory.store(tmp_path_factory.mktemp("browser") / "run", *factory.every_kind())
    draw([folder])
    return folder


@pytest.fixture
def page(tab, run):
    tab.resize(1280)
    tab.open(run / "report.html")
    return tab


def column(page, name: str) -> list[str]:
    heads = page.value("[...document.querySelectorAll('#cells-table th')].map(head => head.dataset.name)")
    return page.value(COLUMN % heads.index(name))


def opened(page, row: int = 0) -> str:
    """The text of a cell's part, once it is unpacked."""
    return page.value(
        f"""(async () => {{
          const row = {ROWS}[{row}], button = row.querySelector("button.open");
          if (button.getAttribute("aria-expanded") === "false") button.click();
          const panel = row.nextElementSibling.querySelector(".cell-details");
          while (panel.textContent === "…") await new Promise(done => setTimeout(done, 5));
          return panel.textContent;
        }})()"""
    )


def test_nothing_is_loaded_and_nothing_is_thrown(page):
    asked = [event["params"]["request"]["url"] for event in page.events if event.get("method") == "Network.requestWillBeSent"]
    assert len(asked) == 1 and asked[0].startswith("file:")
    assert not [event for event in page.events if event.get("method") == "Runtime.exceptionThrown"]


def test_every_cell_is_a_row_with_the_record_s_figures(factory, page):
    records = {record.cell_id: record for record in factory.every_kind()}
    ids, rates = column(page, "cell_id"), column(page, "throughput")
    steps, peaks = column(page, "step_seconds"), column(page, "peak_memory_bytes")
    assert set(ids) == set(records)
    for cell_id, rate, step, peak in zip(ids, rates, steps, peaks, strict=True):
        metrics = records[cell_id].metrics
        assert rate == (number(metrics["tokens_per_second"].value) if metrics else "")
        assert step == (amount(metrics["step_seconds"].value, "s") if metrics else "")
        assert peak == (amount(metrics["peak_memory_bytes"].value, "bytes") if metrics else "")


@pytest.mark.parametrize(
    "name, value, count", [("status", "skipped", 1), ("devices", "4", 3), ("layout", "dp=2:ddp", 1), ("precision", "fp32", 11)]
)
def test_filters(page, name, value, count):
    page.value(
        f"{{ const s = document.getElementById('filter-{name}'); s.value = {value!r}; s.dispatchEvent(new Event('change')) }}"
    )
    assert len(column(page, "cell_id")) == count
    assert f"of {count}" in page.value("document.getElementById('said').textContent")
    page.value("document.getElementById('reset').click()")
    assert len(column(page, "cell_id")) == 11


def test_typing_searches(page):
    page.value("document.getElementById('search').focus()")
    for letter in "fsdp":
        page.press(letter)
    assert set(column(page, "label")) == {"dp=2:fsdp", "dp=4:fsdp"}


def test_a_head_sorts_both_ways_with_missing_figures_last(page):
    page.value("document.querySelector('th[data-name=throughput] button').focus()")
    page.press("Enter")
    head = "document.querySelector('th[data-name=throughput]').ariaSort"
    assert page.value(head) == "ascending"
    assert column(page, "throughput") == ["1,000", "1,500", "1,700", "1,800", "3,000", "4,000", *[""] * 5]
    page.press("Enter")
    assert page.value(head) == "descending"
    assert column(page, "throughput") == ["4,000", "3,000", "1,800", "1,700", "1,500", "1,000", *[""] * 5]


def test_enter_opens_a_cell_and_closes_it(page):
    button = f"{ROWS}[0].querySelector('button.open')"
    page.value(f"{button}.focus()")
    page.press("Enter")
    assert page.value(f"{button}.ariaExpanded") == "true"
    assert page.value(f"document.getElementById({button}.getAttribute('aria-controls')) !== null")
    page.press("Enter")
    assert page.value(f"{button}.ariaExpanded") == "false" and not page.value("document.querySelector('.cell-details')")


def test_an_open_cell_tells_all_of_its_record(factory, page):
    records = {record.cell_id: record for record in factory.every_kind()}
    for row, cell_id in enumerate(column(page, "cell_id")):
        record, text = records[cell_id], opened(page, row)
        assert record.cell.command() in text and record.environment_id in text
        for part in (record.reason, record.log_tail, *record.caveats):
            assert not part or part in text
        if record.verification:
            assert record.verification.verdict in text and record.verification.worst_parameter in text
        if record.status == "ok":
            assert "dtype of parametersfloat32" in text and "3 timed steps" in text
            for name, metric in record.metrics.items():
                (shown,) = re.findall(rf"{name}([0-9.e+-]+) {re.escape(metric.unit)}", text)
                assert float(shown) == metric.value
    assert page.value("document.querySelectorAll('.strip circle.timed').length") == 3 * 6


def test_an_answer_s_link_opens_its_cell(tab, run):
    tab.open(run / "report.html")
    goal = tab.value("document.querySelector('.answers a').getAttribute('href')")
    tab.open(run / "report.html", goal)
    assert tab.value(f"document.getElementById({goal[1:]!r}).querySelector('button').ariaExpanded") == "true"


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme, dark", [("light", False), ("dark", True)])
def test_narrow_and_wide_light_and_dark(tab, run, width, scheme, dark):
    tab.resize(width)
    tab.scheme(scheme)
    tab.open(run / "report.html")
    red = int(re.search(r"\d+", tab.value("getComputedStyle(document.body).backgroundColor"))[0])
    assert (red < 60) == dark
    assert tab.value("document.documentElement.scrollWidth") <= width
    opened(tab)
    assert tab.value("document.documentElement.scrollWidth") <= width
    outside = "[...document.querySelectorAll('select, button, input')].filter(e => e.closest('.wide') === null)"
    assert tab.value(f"{outside}.every(e => e.getBoundingClientRect().right <= {width})")
    tab.scheme("light")


def test_hostile_records_are_shown_whole_and_lose_no_other(tab, factory, tmp_path):
    lost = factory.record("dp=4:ddp", status="crashed", phase="build", reason=LONG)
    marked = factory.record("dp=2:ddp", model=MARKUP, status="crashed", phase="build", reason=MARKUP, log_tail=MARKUP)
    odd = factory.record("dp=8:ddp")
    odd = odd.model_copy(update={"metrics": {"tokens_per_second": Metric(value=float("nan"), unit="tokens/s")}})
    run = factory.store(tmp_path / "run", factory.record(), lost, marked, odd)
    good = factory.record("tp=2:hand").to_line()
    with (run / "records.jsonl").open("a") as file:
        file.write(json.dumps({**json.loads(good), "schema": 9}) + f"\n{good}\n" + good[:100])
    tab.resize(1280)
    tab.open(draw([run]))
    assert tab.value("window.hit") is None and tab.value("document.images.length") == 0
    assert len(column(tab, "cell_id")) == 5
    parts = [opened(tab, row) for row in range(5)]
    assert sum(LONG in part for part in parts) == 1 and sum(part.count(MARKUP) >= 3 for part in parts) == 1
    assert any("NaN tokens/s" in part for part in parts)
    banner = tab.value("document.getElementById('bad-lines-1').textContent")
    assert "2 lines" in banner and "line 5: it is of schema 9" in banner and "line 7: it has no end" in banner


def test_without_scripts_the_tables_are_there(tab, run):
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(run / "report.html")
        root = tab.call("DOM.getDocument", depth=0)["root"]["nodeId"]

        def count(selector):
            return len(tab.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"])

        assert count("noscript tbody tr") == 11 and count("noscript details pre") == 11
        assert count("#cells-here > *") == 0
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_two_runs_are_told_apart(tab, factory, tmp_path):
    runs = [factory.store(tmp_path / name, factory.record(tokens=t)) for name, t in (("a", 1000), ("b", 2000))]
    tab.open(draw(runs, tmp_path / "both"))
    assert list(zip(column(tab, "run"), column(tab, "throughput"), strict=True)) == [("a", "1,000"), ("b", "2,000")]


def test_more_cells_than_one_sees_at_once_are_turned_like_pages(tab, tmp_path):
    tab.open(draw([many.folder(tmp_path / "run", 150)]))
    assert len(column(tab, "cell_id")) == 100
    tab.value("[...document.querySelectorAll('.pager button')].at(-1).click()")
    assert len(column(tab, "cell_id")) == 50
    assert "cells 101 to 150 of 150" in tab.value("document.getElementById('said').textContent")
    assert "To repeat it" in opened(tab, 49)
