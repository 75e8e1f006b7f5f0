"""The workflows: valid, safe, and every step's command is run here, in order, in a copy of the repository.

Only three things are stood in for: `hpbench run`, whose measurement other tests are for, by one that makes up its records; the
tests themselves; and `gh`, which would write a comment.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.harness.gate.test_sides import git

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent

STAND_IN = '''"""Stands in for the command line: `run` makes its records up."""
import random
import sys
from pathlib import Path
from harness import real_cli
from harness.real_cli import *

def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] != ["run"] or "--help" in argv:
        return real_cli.main(argv)
    from benchmarks.site import Site
    from harness import matrix, run, suites
    from harness.environment import suite_commit
    from harness.plan import Planned
    from tests.harness.runs import ENVIRONMENT, made
    arguments = real_cli.parse(argv)
    site = Site.parse("2xcpu:16GiB")
    cells = matrix.expand(suites.load(arguments.suite), site)
    planned = [Planned(cell=cell, reason=None, seconds=1.0) for cell in cells]
    environment = {**ENVIRONMENT, "suite_commit": suite_commit(), "site": site.model_dump(mode="json")}
    folder = Path(arguments.out)
    run.prepare(planned, folder, about={"suite": arguments.suite, "arguments": argv}, environment=environment, seed=0)
    seconds = random.uniform(1.0, 1.01)
    def record(cell):
        return made(seconds=seconds).model_copy(update={"cell": cell, "cell_id": cell.id, "run_id": folder.name})
    run.go(folder, record)
    return 0

if __name__ == "__main__":
    sys.exit(main())
'''


def steps(workflow: Path, job: str) -> list[dict]:
    """The steps of a job that have a command."""
    return [step for step in load(workflow)["jobs"][job]["steps"] if "run" in step]


def load(workflow: Path) -> dict:
    return yaml.safe_load(workflow.read_text())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_they_follow_the_schema_and_are_safe(workflow):
    for command in (
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", workflow],
        [BIN / "zizmor", "--offline", workflow],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_unsafe_workflow_is_found(tmp_path):
    text = (ROOT / ".github" / "workflows" / "benchmarks-gpu.yml").read_text()
    unsafe = text.replace("  pull_request:\n", "  pull_request_target:\n", 1)
    (tmp_path / "unsafe.yml").write_text(unsafe)
    assert subprocess.run([BIN / "zizmor", "--offline", tmp_path / "unsafe.yml"], capture_output=True).returncode != 0


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_permissions_are_the_least_and_no_command_holds_what_others_wrote(workflow):
    content = load(workflow)
    assert content["permissions"] == {} and "pull_request_target" not in content[True]
    for name, job in content["jobs"].items():
        writes = {scope for scope, access in job["permissions"].items() if access == "write"}
        assert writes == {"history": {"contents"}, "comment": {"pull-requests"}}.get(name, set())
        assert not writes or job["runs-on"] == "ubuntu-latest"  # what may write has no machine of yours
        assert "secrets." not in str(job) and not any("${{" in step.get("run", "") for step in job["steps"])
        for step in job["steps"]:
            assert "uses" not in step or re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])


class Runner:
    """A copy of the repository as a checkout, with a remote to push to, where the steps of jobs are run."""

    def __init__(self, folder: Path):
        self.folder, self.checkout, self.remote = folder, folder / "checkout", folder / "remote.git"
        names = ("benchmarks", "harness", "configs", "tests", "run_all.sh", "pyproject.toml", "constraints.txt", ".gitignore")
        self.checkout.mkdir()
        for name in names:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.checkout / name)
        (self.checkout / "harness" / "cli.py").rename(self.checkout / "harness" / "real_cli.py")
        (self.checkout / "harness" / "cli.py").write_text(STAND_IN)
        git(self.checkout, "init", "-qb", "main")
        git(self.checkout, "add", ".")
        git(self.checkout, "commit", "-qm", "all")
        subprocess.run(["git", "init", "-q", "--bare", self.remote], check=True)
        git(self.checkout, "remote", "add", "origin", str(self.remote))
        git(self.checkout, "push", "-q", "origin", "main")
        self._environment()

    def _environment(self) -> None:
        """`.venv` as `run_all.sh` would leave it, so that it does not install again."""
        place = self.checkout / ".venv" / "bin"
        place.mkdir(parents=True)
        self._program(place / "hpbench", f'PYTHONPATH="{self.checkout}" exec "{sys.executable}" -m harness.cli "$@"')
        self._program(place / "python", 'echo "python $*" >> "$LOG"')
        self._program(self.folder / "bin" / "gh", 'echo "gh $*" >> "$LOG"')
        stamp = '{ cat pyproject.toml constraints.txt && echo "$PWD"; } | cksum'
        (self.checkout / ".venv" / "stamp").write_text(subprocess.check_output(stamp, shell=True, text=True, cwd=self.checkout))

    @staticmethod
    def _program(path: Path, line: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{line}\n")
        path.chmod(0o755)

    def job(self, workflow: str, name: str, until: str | None = None, **variables: str) -> dict[str, int]:
        """Run the commands of a job, all or up to one step, as GitHub does; gives each step's exit status."""
        given = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self.folder / "log"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_SHA": git(self.checkout, "rev-parse", "HEAD").strip(),
            "GITHUB_REPOSITORY": "some/project",
            "GITHUB_RUN_ID": "1",
            "GITHUB_RUN_ATTEMPT": "1",
            **variables,
        }
        given.pop("PYTHONPATH", None)
        found = {}
        for step in steps(ROOT / ".github" / "workflows" / workflow, name):
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(command, cwd=self.checkout, env=given, capture_output=True, text=True)
            found[step["name"]] = done.returncode
            self.said = done.stdout + done.stderr
            print(step["name"], done.returncode, self.said)
            if done.returncode or step["name"] == until:
                break
        return found

    @property
    def summary(self) -> str:
        return (self.folder / "summary.md").read_text()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def runner(tmp_path_factory) -> Runner:
    return Runner(tmp_path_factory.mktemp("runner"))


def test_the_tests_on_ordinary_runners(runner):
    assert set(runner.job("tests.yml", "tests").values()) == {0}
    assert "python -m pytest" in runner.log and "### hpbench: smoke" in runner.summary
    assert (runner.checkout / "results" / "smoke" / "junit.xml").exists()


def test_the_gate_and_its_comment(runner):
    head = git(runner.checkout, "rev-parse", "HEAD").strip()
    done = runner.job("benchmarks-gpu.yml", "gate", SUITE="gate", BASE=head, HEAD=head)
    assert set(done.values()) == {0}, runner.said
    assert "### hpbench: nothing regressed" in runner.summary
    assert set(runner.job("benchmarks-gpu.yml", "comment", NUMBER="7", GH_TOKEN="").values()) == {0}
    assert "gh pr comment 7 --repo some/project --edit-last --create-if-none --body-file results/gate/summary.md" in runner.log


def test_the_night_and_its_history(runner):
    # The first night makes the branch, the second one goes on with it.
    for night, until in (("1", None), ("2", "Add the night")):
        assert set(runner.job("benchmarks-gpu.yml", "nightly", SUITE="gate", GITHUB_RUN_ID=night).values()) == {0}
        assert set(runner.job("benchmarks-gpu.yml", "history", until).values()) == {0}, runner.said
        git(runner.checkout, "worktree", "remove", "--force", "history-branch")
        git(runner.checkout, "branch", "-D", "benchmark-history") if night == "1" else None
    kept = git(runner.remote, "show", "benchmark-history:history/one/nights.jsonl")
    assert len(kept.splitlines()) == 2 and "### hpbench history" in runner.summary
    assert git(runner.remote, "ls-tree", "--name-only", "benchmark-history").split() == ["history"]
    assert list((runner.checkout / "plots").glob("*.png"))


def test_every_job_with_a_command_is_run_above():
    jobs = {job for workflow in WORKFLOWS for job in load(workflow)["jobs"] if steps(workflow, job)}
    assert jobs == {"tests", "gate", "comment", "nightly", "history"}
