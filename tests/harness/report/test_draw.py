import csv
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmarks.errors import UsageError
from harness.report import draw

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'single' {{ 7*7 }} $x_1$ \x1b[31m"


class Page(HTMLParser):
    """What a browser would see: tags with attributes, scripts, and visible text."""

    def __init__(self, document: str):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(document)
        self.text = " ".join(self.words)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


@pytest.fixture(scope="module")
def run(factory, tmp_path_factory):
    """A run folder with every way in which a cell can end, drawn."""
    folder = factory.store(tmp_path_factory.mktemp("report") / "run", *factory.every_kind())
    assert draw([folder]) == folder / "report.html"
    return folder


def test_writes_pictures_summary_and_page(run):
    assert {p.suffix for p in (run / "plots").iterdir()} == {".png", ".svg", ".csv"}
    with (run / "summary.csv").open() as file:
        rows = {row["layout"]: row for row in csv.DictReader(file)}
    assert len(rows) == 11
    assert float(rows["dp=4:ddp"]["tokens_per_second"]) == 3000 and rows["dp=4:fsdp"]["tokens_per_second"] == ""
    assert rows["dp=4:fsdp"]["status"] == "oom"


def test_the_page_loads_nothing(run):
    document = (run / "report.html").read_text()
    page = Page(document)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert "@import" not in document
    assert all(target.strip("'\"").startswith("#") for target in re.findall(r"url\(([^)]*)\)", document))
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(", document)
    assert page.count("svg") == 6


def test_the_page_tells_of_every_cell(factory, run):
    records, page = factory.every_kind(), page_of(run)
    for record in records:
        assert page.text.count(record.cell_id) >= 2
        if record.reason:
            assert record.reason in page.text
    for caveat in {caveat for record in records for caveat in record.caveats}:
        assert caveat in page.text
    assert "does not rank them" in page.text and "Test CPU" in page.text
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {attributes["href"][1:] for tag, attributes in page.tags if tag == "a"}
    assert links <= anchors


def test_hostile_strings_stay_text(factory, tmp_path):
    records = [
        factory.record(model=HOSTILE, caveats=(f"cpu: {HOSTILE}",)),
        factory.record("dp=2:ddp", model=HOSTILE, status="crashed", reason=HOSTILE, log_tail=HOSTILE, phase="build"),
        factory.record("tp=2:hand", model=HOSTILE, data=HOSTILE),
    ]
    run = factory.store(tmp_path / "<script>run", *records)
    (run / "environment.json").write_text('{"<script>name": "<script>value"}')
    page = page_of(draw([run]).parent)
    assert page.count("script") == 3  # the page's own, its table and one pack of records
    assert page.count("img") == 0 and not any("onerror" in attributes for _, attributes in page.tags)
    assert "{{ 7*7 }}" in page.text and "<script>value" in page.text
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", path.name) for path in (run / "plots").iterdir())


def test_two_runs_have_a_run_column_and_a_folder(factory, tmp_path):
    a = factory.store(tmp_path / "a", factory.record(tokens=1000))
    b = factory.store(tmp_path / "b", factory.record(tokens=2000), factory.record("dp=2:ddp"))
    page = page_of(draw([a, b], tmp_path / "both").parent)
    assert "1 of 1" in page.text and "2 of 2" in page.text
    assert not (a / "report.html").exists()
    with (tmp_path / "both" / "summary.csv").open() as file:
        rows = [(row["run"], row["layout"]) for row in csv.DictReader(file)]
    assert rows == [("a", "single"), ("b", "single"), ("b", "dp=2:ddp")]


def test_runs_of_the_same_name_are_told_apart(factory, tmp_path):
    folders = [factory.store(tmp_path / side / "run", factory.record()) for side in ("a", "b")]
    page = page_of(draw(folders, tmp_path / "both").parent)
    assert "run (1)" in page.text and "run (2)" in page.text


@pytest.mark.parametrize("kind", ["empty", "failed", "one"])
def test_small_runs(factory, tmp_path, kind):
    records = {
        "empty": [],
        "failed": [factory.record(status="timeout", reason="slow"), factory.record("dp=2:ddp", status="skipped", reason="no")],
        "one": [factory.record()],
    }[kind]
    page = page_of(draw([factory.store(tmp_path / "run", *records)]).parent)
    expected = {"empty": "no answer", "failed": "no verified cell has this figure", "one": "Every cell has one."}
    assert expected[kind] in page.text


def test_drawing_again_replaces_what_was_there(factory, tmp_path):
    run = factory.store(tmp_path / "run", factory.record(), factory.record(precision="bf16"))
    draw([run])
    assert (run / "plots" / "throughput-llama-tiny-bf16.png").exists()
    (run / "records.jsonl").write_text(factory.record().to_line() + "\n")
    draw([run])
    assert not (run / "plots" / "throughput-llama-tiny-bf16.png").exists()
    assert not list(run.glob("*.new"))


def test_cells_of_an_interrupted_run_are_named(factory, tmp_path):
    done, waiting = factory.record(), factory.record("dp=8:ddp")
    run = factory.store(tmp_path / "run", done)
    cells = ",".join(f'{{"cell": {record.cell.canonical()}}}' for record in (done, waiting))
    (run / "run.json").write_text(f'{{"cells": [{cells}]}}')
    page = page_of(draw([run]).parent)
    assert "no record of 1 of the cells" in page.text and "llama-tiny dp=8:ddp" in page.text


def test_the_last_record_of_a_cell_counts(factory, tmp_path):
    run = factory.store(tmp_path / "run", factory.record(status="crashed", reason="x"), factory.record())
    draw([run])
    with (run / "summary.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["ok"]


def test_bad_folders(factory, tmp_path):
    run, other = factory.store(tmp_path / "run"), factory.store(tmp_path / "other")
    (tmp_path / "file").write_text("")
    for folders, out, word in (
        ([], None, "no run"),
        ([tmp_path / "nothing"], None, "no run folder"),
        ([run, run], None, "twice"),
        ([run], other, "another folder"),
        ([run], tmp_path / "file", "is a file"),
        ([run], tmp_path / "file" / "below", "cannot write"),
    ):
        with pytest.raises(UsageError, match=word):
            draw(folders, out)
    assert {path.name for path in other.iterdir()} == {"run.json", "environment.json", "records.jsonl"}


NO_TORCH = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(name)

sys.meta_path.insert(0, Nowhere())
from harness.report import draw
draw(sys.argv[1:])
"""


def test_needs_no_torch(factory, tmp_path):
    run = factory.store(tmp_path / "run", factory.record())
    subprocess.run([sys.executable, "-c", NO_TORCH, str(run)], check=True, cwd=Path(__file__).parents[3])
