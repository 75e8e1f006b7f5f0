"""The command line: what starts quickly, what it prints, and that every mistake is one sentence and exit status 2."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cell import Cell
from benchmarks.site import Site
from harness import matrix, store
from harness.cli import main, parse
from harness.commands import wanted
from tests.harness.test_run import planned, prepared, record

ROOT = Path(__file__).parents[2]

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is blocked")
sys.meta_path.insert(0, Blocker())
from harness.cli import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print("LOADED", *sorted(name for name in sys.modules if "." not in name))
sys.exit(status)
"""


def hpbench(*arguments: str, script: str | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    start = ["-c", script] if script else ["-m", "harness.cli"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *start, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def finished_run(tmp_path: Path) -> Path:
    from harness import run

    folder = prepared(tmp_path, planned(3, refused=1))
    run.go(folder, record)
    return folder


def test_help_loads_nothing_that_is_slow():
    done = hpbench("--help", script=BLOCKED)
    assert done.returncode == 0 and "usage: hpbench" in done.stdout
    loaded = set(done.stdout.partition("LOADED ")[2].split())
    assert not loaded & {"torch", "numpy", "pandas", "pydantic", "yaml", "multiprocessing"}


def test_reports_are_drawn_and_runs_compared_without_torch(tmp_path):
    folder, other = finished_run(tmp_path), finished_run(tmp_path / "other")
    for command in (
        ["report", folder],
        ["compare", folder, other],
        ["recommend", folder],
        ["explain", folder, store.read(folder).records[-1].cell_id[:6]],
    ):
        done = hpbench(*map(str, command), script=BLOCKED)
        assert done.returncode in (0, 2) if command[0] == "compare" else done.returncode == 0, done.stderr
        assert "torch" not in done.stdout.partition("LOADED ")[2].split()
    assert (folder / "report.html").stat().st_size > 0


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["run", "--model", "llama-tniy"], ["unknown model 'llama-tniy'", "did you mean 'llama-tiny'?"]),
        (["run", "--model", "llama-tiny[bloks=2]"], ["unknown option 'bloks'", "did you mean 'blocks'?"]),
        (["run", "--layout", "dp=2:dpp"], ["unknown data parallel implementation 'dpp'", "did you mean 'ddp'?"]),
        (["run", "--layout", "dq=2"], ["unknown axis 'dq'", "known are dp, pp, tp"]),
        (["run", "--layout", "dp=two"], ["cannot read 'dp=two'", "for example"]),
        (["run", "--layout", "dp=0"], ["below 1"]),
        (["run", "--layout", "tp=3,dp=*", "--world", "4"], ["fits no world of 4 devices"]),
        (["run", "--precision", "fp61"], ["unknown precision 'fp61'", "known are bf16, fp16, fp32"]),
        (["run", "--batch", "0"], ["batch.global '0'", "greater than 0"]),
        (["run", "--set", "protocol.measure_stps=1"], ["unknown key 'measure_stps'", "did you mean 'measure_steps'?"]),
        (["run", "--set", "measure_steps"], ["--set 'measure_steps'", "FIELD=VALUE"]),
        (["run", "--text", "/no/such/file"], ["'/no/such/file' does not exist"]),
        (["run", "--text", "/"], ["'/' is not a file"]),
        (["run", "--precison", "bf16"], ["unknown option '--precison'", "did you mean '--precision'?"]),
        (["run"], ["nothing to run", "smoke"]),
        (["run", "smok"], ["unknown suite 'smok'", "did you mean 'smoke'?"]),
        (["run", "smoke", "--filter", "precison=bf16"], ["unknown field 'precison'"]),
        (["run", "smoke", "--resume", "/no/such/run"], ["--resume goes on with", "leave it out"]),
        (["run", "--resume", "/no/such/run"], ["'/no/such/run' is no run folder"]),
        (["run", "--resume", "/no/such/run", "--retry", "ooom"], ["unknown status 'ooom'", "did you mean 'oom'?"]),
        (["run", "smoke", "--retry", "oom"], ["--retry oom", "--resume DIR"]),
        (["run", "smoke", "--budget", "30"], ["cannot read --budget '30'", "30m"]),
        (["plan", "smoke", "--budget", "soon"], ["cannot read --budget 'soon'"]),
        (["plan", "smoke", "--devices", "8xtpu"], ["cannot read devices '8xtpu'", "8xcuda:80GiB"]),
        (["runn"], ["invalid choice: 'runn'"]),
        (["report", "/no/such/run"], ["'/no/such/run' is no run folder"]),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(arguments, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hpbench: ") and err.count("\n") == 1
    for part in parts:
        assert part in err
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_too_short(tmp_path, capsys):
    (tmp_path / "text").write_text("too short")
    assert main(["run", "--text", str(tmp_path / "text"), "--sequence", "64"]) == 2
    assert "has 9 bytes: a sequence of 64 tokens needs 65" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["run.json", "notes.txt"])
def test_an_output_folder_in_use(tmp_path, capsys, content):
    (tmp_path / content).write_text("{}")
    assert main(["run", "smoke", "--out", str(tmp_path)]) == 2
    assert f"output folder '{tmp_path}' holds" in capsys.readouterr().err
    assert [f.name for f in tmp_path.iterdir()] == [content]


def test_an_output_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["run", "smoke", "--out", str(tmp_path / "file" / "run")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_cell_that_cannot_run_is_one_sentence_and_leaves_nothing(tmp_path):
    done = hpbench("run", "--layout", "tp=3:hand", "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.startswith("hpbench: this cell cannot run: ") and done.stderr.count("\n") == 1
    assert "heads" in done.stderr and "3" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--layout", "dp=3", "--batch", "8"], ["cannot run", "global batch of 8", "multiple of 3"]),
        (["--layout", "dp=2:fsdp[rehsard=false]"], ["unknown knob 'rehsard'", "did you mean 'reshard'?"]),
        (["--model", "llama-tiny[heads=3]"], ["heads"]),
    ],
)
def test_what_only_an_implementation_or_a_model_can_refuse(arguments, parts, tmp_path, capsys):
    assert main(["run", *arguments, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("hpbench: ") and err.count("\n") == 1
    for part in parts:
        assert part in err
    assert list(tmp_path.iterdir()) == []


def test_a_plan_says_what_runs_and_what_does_not(tmp_path, capsys):
    suite = tmp_path / "mine.yaml"
    suite.write_text("description: a test\ncells: [{layout: [single, 'tp=3:hand', 'pp=2:devices', 'dp=4']}]\n")
    assert main(["plan", str(suite), "--devices", "2xcuda:80GiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[2]: line.split() for line in lines if "llama-tiny" in line and line.split()[1] == "llama-tiny"}
    assert {layout: row[-1] for layout, row in rows.items()} == {
        "single": "yes",
        "tp=3:hand": "no",
        "pp=2:devices": "yes",
        "dp=4:ddp": "no",
    }
    assert rows["pp=2:devices"][3:5] == ["2", "1"]
    assert any("uses 4 devices and there are 2" in line for line in lines)
    assert any(line.startswith("4 cells on 2xcuda:80GiB: 2 can run, 2 cannot; about ") for line in lines)


def test_the_plan_of_a_node_is_made_without_one(capsys):
    assert main(["plan", "node", "--devices", "8xcuda:80GiB", "--budget", "30m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {tuple(line.split()[1:3]): line for line in lines if re.match("[0-9a-f]{12} ", line)}
    # 8 billion parameters with gradients and two states in fp32 are 120 GiB; an eighth of the states fits.
    assert "expected not to fit" in rows["llama-8b", "single"] and "expected not to fit" in rows["llama-8b", "dp=8:ddp"]
    assert "expected not to fit" not in rows["llama-8b", "dp=8:fsdp"]
    assert rows["gpt2-1.5b", "tp=8:hand"].endswith(" no") and rows["gpt2-1.5b", "dp=8:ddp"].endswith(("yes", "left out"))
    assert any("expected not to fit 8xcuda:80GiB: " in line and "as evidence" in line for line in lines)
    assert any("heads=25, which tensor parallelism of degree 8 does not divide" in line for line in lines)
    assert any(line.startswith("left out for the budget of 30 min 0 s: ") for line in lines)


@pytest.mark.parametrize(
    "layout, reason",
    [
        ("dp=16", "uses 16 devices and there are 8"),
        ("pp=2:devices,dp=2:fsdp", "one device of its mesh"),  # on a CPU this one is legal
        ("pp=2:devices,dp=2:zero1", "one device"),
        ("pp=2:devices,tp=2:hand", "one process drives all stages"),
        ("pp=2:1f1b", "refuses 1 microbatches on 2 stages"),
        ("pp=2:manual,tp=2:hand,dp=2:fsdp", None),
    ],
)
def test_what_implementations_refuse_on_gpus_is_known_without_one(layout, reason, capsys):
    assert main(["plan", "--layout", layout, "--batch", "16", "--devices", "8xcuda:80GiB"]) == 0
    out = capsys.readouterr().out
    assert (reason in out and "0 can run, 1 cannot" in out) if reason else "1 can run, 0 cannot" in out


def test_a_suite_is_run_reported_resumed_and_its_illegal_cells_skipped(tmp_path, capsys):
    suite, folder = tmp_path / "mine.yaml", tmp_path / "run"
    suite.write_text(
        """
description: a test
defaults:
  batch: {global: 4, sequence: 16}
  protocol: {warmup_steps: 2, measure_steps: 2, measure_seconds: 0}
cells: [{layout: [single, dp=2, dp=3]}]
"""
    )
    assert main(["run", str(suite), "--out", str(folder), "--report"]) == 0
    out, err = capsys.readouterr()
    records = {str(r.cell.layout): r for r in store.read(folder).records}
    assert {layout: r.status for layout, r in records.items()} == {"single": "ok", "dp=2:ddp": "ok", "dp=3:ddp": "skipped"}
    assert "multiple of 3" in records["dp=3:ddp"].reason
    assert "3 cells: 2 ok, 1 skipped" in out and str(folder / "report.html") in out
    assert err.count("llama-tiny") == 2

    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join(line for line in lines if records["single"].cell_id not in line))
    assert main(["run", "--resume", str(folder)]) == 0
    again = {str(r.cell.layout): r for r in store.read(folder).records}
    assert again["dp=2:ddp"] == records["dp=2:ddp"] and again["single"].cell == records["single"].cell
    assert len(store.read(folder).records) == 3


def test_a_budget_too_small_leaves_all_out_and_a_larger_one_resumes(tmp_path, capsys):
    one = ["--sequence", "16", "--batch", "2", "--set", "protocol.measure_steps=0"]
    assert main(["run", *one, "--out", str(tmp_path / "run"), "--budget", "0.1s"]) == 0
    assert "1 cell: 1 left out for the budget of 0 s" in capsys.readouterr().out
    assert store.read(tmp_path / "run").records == []
    assert main(["run", "--resume", str(tmp_path / "run"), "--budget", "5m"]) == 0
    assert [r.status for r in store.read(tmp_path / "run").records] == ["ok"]
    assert store.read(tmp_path / "run").run["state"] == "finished"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "gpt2-tiny[blocks=2]", "layout": "tp=2:hand,dp=2:fsdp[reshard=false]", "processes": 4, "devices": 4},
        {"precision": "bf16", "checkpointing": "full", "clip": 1.0, "seed": 3, "batch": {"global": 4, "microbatches": 2}},
        {"optimizer": {"name": "sgd", "betas": [0.8, 0.9]}, "protocol": {"probe": False, "measure_seconds": 0.25}},
    ],
)
def test_the_command_of_a_cell_gives_that_cell(fields):
    cell = Cell.model_validate(fields)
    suite, overrides = wanted(parse(shlex.split(cell.command())[1:]))
    assert matrix.expand(suite, Site(), overrides=overrides) == [cell]


def test_doctor_says_what_is_there(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("python", "torch", "devices", "deepspeed", "C++ compiler", "ready; next: hpbench run smoke"):
        assert word in out


@pytest.mark.parametrize("command", ["explain", "recommend"])
def test_lines_that_are_no_record_are_named(tmp_path, capsys, command):
    folder = prepared(tmp_path, planned(1))
    cell = planned(1)[0].cell
    store.append(folder, record(cell))
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"schema": 99}\n')
    assert main([command, str(folder), *([cell.id] if command == "explain" else [])]) == 0
    said = capsys.readouterr().err
    assert "line 2 of" in said and "records.jsonl' could not be read and is left out: " in said


def test_a_library_that_installs_a_package_of_the_same_name_is_not_taken_for_ours(tmp_path):
    # As FairScale does, into the folder that is searched before an editable install.
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise ImportError('another package')")
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import harness, benchmarks.models; print(benchmarks.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.strip() == str(ROOT / "benchmarks" / "__init__.py"), done.stderr
