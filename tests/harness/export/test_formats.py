"""Each format, read back by a reader of its own."""

import csv
import io
import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harness.cli import main
from harness.export import export, formats
from tests.harness.runs import made, stored


@pytest.fixture
def run(tmp_path) -> Path:
    records = [
        made(seconds=0.5, peak=2048),
        made("single", status="skipped"),
        made("tp=2:hand", status="crashed", log_tail="line\x1b[0m\n<tag>"),
        made("pp=2:1f1b", status="oom"),
    ]
    return stored(tmp_path / "run", *records)


def test_every_format_is_written_without_torch_and_by_the_command(run, tmp_path, capsys):
    assert len(formats()) == 7
    for name in formats():
        out = tmp_path / name
        assert main(["export", str(run), "--format", name, "--out", str(out)]) == 0
        capsys.readouterr()
        assert main(["export", str(run), "--format", name]) == 0
        assert capsys.readouterr().out == out.read_text() == export(run, name)
    script = f"""if True:
        import pathlib, sys
        from harness.export import export, formats
        for name in formats():
            export(pathlib.Path({str(run)!r}), name)
        print("torch" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_an_unknown_format_and_a_broken_run(run, capsys):
    assert main(["export", str(run), "--format", "junitt"]) == 2
    assert "unknown format 'junitt'" in capsys.readouterr().err
    (run / "records.jsonl").write_text((run / "records.jsonl").read_text()[:-5])
    assert main(["export", str(run), "--format", "junit"]) == 2
    assert "line 4 of" in capsys.readouterr().err


def test_csv(run):
    rows = list(csv.DictReader(io.StringIO(export(run, "csv"))))
    figures = {row["metric"]: row for row in rows if row["layout"] == "dp=2:ddp"}
    assert float(figures["step_seconds"]["value"]) == 0.5 and figures["peak_memory_bytes"]["unit"] == "bytes"
    (single,) = [row for row in rows if row["layout"] == "single"]
    assert (single["status"], single["reason"], single["metric"]) == ("skipped", "it was so", "")


def test_junit(run):
    suite = xml.fromstring(export(run, "junit")).find("testsuite")
    assert {name: suite.get(name) for name in ("tests", "skipped", "failures", "errors")} == {
        "tests": "4", "skipped": "1", "failures": "1", "errors": "1"
    }  # fmt: skip
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    passed = cases["llama-tiny dp=2:ddp fp32"]
    assert float(passed.get("time")) == 2.0
    assert {p.get("name"): p.get("value") for p in passed.iter("property")}["step_seconds (s)"] == "0.5"
    assert "<tag>" in cases["llama-tiny tp=2:hand fp32"].find("error").text


def test_openmetrics(run):
    families = {family.name: family for family in text_string_to_metric_families(export(run, "openmetrics"))}
    (sample,) = families["hpbench_step_seconds"].samples
    assert sample.value == 0.5 and sample.labels["layout"] == "dp=2:ddp" and families["hpbench_step_seconds"].unit == "seconds"
    assert sorted((s.labels["status"], s.value) for s in families["hpbench_cell_ok"].samples) == [
        ("crashed", 0.0), ("ok", 1.0), ("oom", 0.0), ("skipped", 0.0)
    ]  # fmt: skip


def test_github_action_benchmark(run):
    smaller = json.loads(export(run, "github-action-benchmark-smaller"))
    assert [(e["name"], e["unit"], e["value"]) for e in smaller] == [
        ("llama-tiny dp=2:ddp fp32: step_seconds", "s", 0.5),
        ("llama-tiny dp=2:ddp fp32: peak_memory_bytes", "bytes", 2048),
    ]
    (bigger,) = json.loads(export(run, "github-action-benchmark-bigger"))
    assert (bigger["unit"], bigger["value"]) == ("tokens/s", 1024)


def test_markdown(run):
    text = export(run, "markdown")
    assert text.startswith("### hpbench: mine\n\n1 ok, 1 out of memory, 1 skipped, 1 crashed\n")
    assert "| llama-tiny dp=2:ddp fp32 | ok | 500 ms (95 % interval 450 to 550) | 1,024 tokens/s | 2 KiB | passed |" in text


def test_pytest_benchmark_reads_its_own(run, tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(export(run, "pytest-benchmark"))
    after.write_text(export(stored(tmp_path / "later", made(seconds=1.0)), "pytest-benchmark"))
    command = [Path(sys.executable).with_name("pytest-benchmark"), "compare", "--csv", tmp_path / "out", before, after]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["name"] for row in rows] == ["benchmarks/test_cells.py::test_cell[llama-tiny dp=2:ddp fp32]"] * 2
    assert [float(row["median"]) for row in rows] == [0.5, 1.0] and [row["rounds"] for row in rows] == ["3", "3"]


def test_cells_that_share_a_title_are_told_apart(tmp_path):
    cell = made().cell.model_copy(update={"seed": 1})
    other = made().model_copy(update={"cell": cell, "cell_id": cell.id})
    names = [e["name"] for e in json.loads(export(stored(tmp_path / "run", made(), other), "github-action-benchmark-bigger"))]
    assert len(set(names)) == 2
