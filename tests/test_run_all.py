"""`run_all.sh`, with stand-ins for Python and its environment: what it sets up, and what it starts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PYTHON = """#!/bin/sh
case "$*" in
    *print*version_info*) echo {version} ;;
    *sys.exit*) exit {too_old} ;;
    *"import venv"*) exit {no_venv} ;;
    "-m venv"*)
        mkdir -p "$4/bin"
        printf '#!/bin/sh\\necho "python $*" >> "{log}"\\n' > "$4/bin/python"
        printf '#!/bin/sh\\necho "hpbench $*" >> "{log}"\\n' > "$4/bin/hpbench"
        chmod +x "$4/bin/python" "$4/bin/hpbench" ;;
esac
"""


class Checkout:
    """A copy of what `run_all.sh` needs, with a stand-in for Python that notes what is started."""

    def __init__(self, folder: Path, version: str = "3.11", too_old: int = 0, no_venv: int = 0):
        self.folder, self.log = folder, folder / "log"
        for name in ("run_all.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        (folder / "bin").mkdir()
        self.program("python", PYTHON.format(version=version, too_old=too_old, no_venv=no_venv, log=self.log))

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        environment = {**kept, "PATH": path, "HPBENCH_PYTHON": str(self.folder / "bin" / "python"), **variables}
        command = ["bash", str(self.folder / "run_all.sh"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.folder.parent)

    def started(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "copy").mkdir()
    return Checkout(tmp_path / "copy")


def test_it_installs_once_and_again_only_when_something_changed(checkout):
    assert checkout.run("smoke").returncode == 0
    first = checkout.started()
    install = next(line for line in first if "--editable" in line)
    assert "torch==" in install and f"--constraint {checkout.folder}/constraints.txt" in install
    assert first[-1] == "hpbench run --report smoke"

    checkout.run("smoke")
    assert checkout.started() == ["hpbench run --report smoke"]

    with (checkout.folder / "constraints.txt").open("a") as file:
        file.write("another==1.0\n")
    checkout.run("smoke")
    assert any("--editable" in line for line in checkout.started())


@pytest.mark.parametrize(
    "gpu, variables, suite",
    [
        (False, {}, "cpu"),
        (True, {}, "node"),
        (True, {"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
        (True, {"CUDA_VISIBLE_DEVICES": "-1"}, "cpu"),
        (True, {"CUDA_VISIBLE_DEVICES": "0,1"}, "node"),
    ],
)
def test_the_suite_is_chosen_by_hardware(checkout, gpu, variables, suite):
    checkout.program("nvidia-smi", "#!/bin/sh\necho 'GPU 0: some device'\n" if gpu else "#!/bin/sh\nexit 9\n")
    if Path("/dev/nvidia0").exists() and not gpu:
        variables = {"CUDA_VISIBLE_DEVICES": ""}
    checkout.run(**variables)
    assert checkout.started()[-1] == f"hpbench run --report {suite}"


def test_arguments_go_to_run_and_tests_to_pytest(checkout):
    checkout.run("--layout", "dp=2", "--out", "a folder")
    assert checkout.started()[-1] == "hpbench run --report --layout dp=2 --out a folder"
    checkout.run("test", "-m", "table")
    assert checkout.started()[-1] == "python -m pytest -m table"


@pytest.mark.parametrize(
    "python, parts",
    [
        ({"version": "3.8", "too_old": 1}, ["is Python 3.8", "3.10 or newer is needed"]),
        ({"no_venv": 1}, ["has no venv module", "apt-get install python3-venv"]),
    ],
)
def test_a_python_that_cannot_be_used_is_one_sentence(tmp_path, python, parts):
    done = Checkout(tmp_path, **python).run("smoke")
    assert done.returncode == 2 and done.stdout == ""
    told = [line for line in done.stderr.splitlines() if "setting up" not in line]
    assert len(told) == 1 and told[0].startswith("run_all.sh: ")
    for part in (*parts, "HPBENCH_PYTHON="):
        assert part in told[0]
    assert not (tmp_path / ".venv").exists()
