"""Checkouts of a gate: which code runs, what is left behind, what is said of mistakes. One slow test measures a cell."""

import json
import subprocess
import sys

import pytest

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from harness import gate as gates
from harness import matrix, suites
from harness.cli import main
from harness.gate import Wanted, _suite_of, gate
from harness.gate.sides import ROOT, checked_out
from tests.harness.runs import made, stored


def git(folder, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path):
    """A repository of a plain module with two commits, `one` and `two`."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("one", "two"):
        (folder / "made_up_framework.py").write_text(f"NAME = {name!r}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", name)
        git(folder, "tag", name)
    return folder


def imported(side) -> str:
    command = [side.python, "-c", "import made_up_framework as m; print(m.NAME)"]
    return subprocess.run(command, cwd="/", env=side._environment(), capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("ref", ["one", "two"])
def test_a_project_of_plain_python_is_imported_from_its_checkout(project, tmp_path, ref):
    with checked_out("base", ref, project, sys.executable, None, tmp_path / "out") as side:
        assert imported(side) == ref and side.tree == ROOT and side.title.startswith(f"{ref} (")
    assert "out" not in git(project, "worktree", "list") and not any((tmp_path / "out").iterdir())


def test_installing_makes_an_environment_for_each_side_that_sees_the_one_around_it(project, tmp_path):
    install = """python -c "import shutil, sysconfig; shutil.copy('made_up_framework.py', sysconfig.get_paths()['purelib'])" """
    with checked_out("base", "one", project, sys.executable, install, tmp_path / "out") as side:
        assert imported(side) == "one" and project not in side.path
        seen = subprocess.run([side.python, "-c", "import pydantic, sys; print(sys.prefix)"], capture_output=True, text=True)
        assert seen.stdout.strip() == str(tmp_path / "out" / "base-environment")
    assert not (tmp_path / "out" / "base-environment").exists()


def test_hpbench_itself_runs_from_the_checkout(tmp_path):
    with checked_out("head", ".", ROOT, sys.executable, None, tmp_path / "out") as side:
        assert side.tree == ROOT and side.path == (ROOT,) and side.title == "the working tree"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ref": "three"}, "git rev-parse .* failed: .*; give --base and --head commits"),
        ({"python": "/no/python"}, "--base-python '/no/python' is no program"),
        ({"install": """python -c "print('broken'); raise SystemExit(3)" """}, "ended with status 3: broken; try it by hand"),
        ({"install": "no-such-program ."}, "it is run without a shell"),
        ({"install": "pip 'install"}, "cannot read --install"),
    ],
)
def test_mistakes_leave_nothing(project, tmp_path, fields, said):
    given = {"ref": "one", "python": sys.executable, "install": None, **fields}
    with pytest.raises(UsageError, match=said):
        with checked_out("base", given["ref"], project, given["python"], given["install"], tmp_path / "out"):
            pytest.fail("it was entered")
    assert "out" not in git(project, "worktree", "list")


def test_a_run_that_cannot_start_is_told_with_what_it_said(tmp_path):
    with checked_out("base", ".", ROOT, sys.executable, None, tmp_path) as side:
        with pytest.raises(UsageError, match="base .* cannot run: .*unknown suite 'nosuch'.*; see '.*01.log'"):
            side.run(["nosuch"], tmp_path / "base" / "01")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gate"], "base and head are the same: give --base"),
        (["gate", "nosuch", "--base", "HEAD"], "unknown suite 'nosuch'"),
        (["gate", "--base", "HEAD", "--pairs", "0"], "give 1 or more"),
        (["gate", "--base", "HEAD", "--heed", "x"], "unknown option '--heed'"),
        (["calibrate", "--runs", "0"], "--runs 0"),
    ],
)
def test_mistakes_on_the_command_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_cells_that_are_not_clear_are_a_suite_of_the_same_cells(tmp_path):
    cells = [Cell(layout="tp=2:hand", processes=2, devices=2, precision="bf16", batch={"global": 4}), Cell(clip=1.0)]
    suite = suites.load(str(_suite_of(cells, tmp_path / "cells.yaml")))
    from benchmarks.site import Site

    assert [cell.id for cell in matrix.expand(suite, Site.parse("2xcpu:16GiB"))] == [cell.id for cell in cells]


@pytest.mark.parametrize(("factor", "word", "status"), [(1.0, "stable", 0), (1.2, "regressed", 1)])
def test_a_whole_gate_of_made_up_runs(project, tmp_path, monkeypatch, capsys, factor, word, status):
    def run(side, arguments, folder):
        number = int(folder.name)
        seconds = (1 + 0.001 * (number % 3)) * (factor if side.name == "head" else 1)
        return gates.store.read(stored(folder, made(seconds=seconds)))

    monkeypatch.setattr("harness.gate.sides.Side.run", run)
    out = tmp_path / "out"
    asked = Wanted(base="one", head="two", project=project, golden=tmp_path / "golden")
    assert gate(asked, out) == status
    printed = capsys.readouterr()
    assert "5 to 10: all clear" in printed.err or "6 of 5" not in printed.err
    result = json.loads((out / "gate.json").read_text())
    assert {v["word"] for v in result["verdicts"] if v["metric"] == "step_seconds"} == {word}
    assert result["exit_status"] == status and "two (" in (out / "summary.md").read_text()
    assert main(["compare", str(out / "base"), str(out / "head")]) == status


@pytest.mark.slow
def test_a_real_gate_of_one_cell(tmp_path, monkeypatch):
    suite = tmp_path / "one.yaml"
    suite.write_text("description: one\ncells: [{protocol: {warmup_steps: 1, measure_steps: 2, measure_seconds: 0}}]\n")
    monkeypatch.chdir(ROOT)
    arguments = ["gate", str(suite), "--base", "HEAD", "--head", "HEAD", "--pairs", "1", "--max-pairs", "1"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    words = [v["word"] for v in json.loads((tmp_path / "out" / "gate.json").read_text())["verdicts"]]
    assert words.count("inconclusive") == 1 and set(words) == {"stable", "inconclusive"}
