"""Children start with torch loaded, answer by file, and whatever they do is told as one cause and leaves nothing running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.errors import UsageError
from harness.launch.local import ROOT, ChildError, Launcher

LIMITS = {"build": 60.0, "measure": 60.0}


def test_a_call_answers_from_a_process_that_has_torch_loaded(launcher: Launcher) -> None:
    answer = launcher.call("tests.harness.launched:echo", {"value": [1, "two"]}, limit=60)
    assert answer["value"] == [1, "two"]
    assert answer["torch"]


def test_a_child_does_not_run_the_parents_main_again(launcher: Launcher) -> None:
    assert launcher.call("tests.harness.launched:echo", {}, limit=60)["main"] is None


def test_a_persons_mistake_comes_back_as_such(launcher: Launcher) -> None:
    with pytest.raises(UsageError, match="did you mean 'llama-tiny'"):
        launcher.call("tests.harness.launched:misused", {}, limit=60)


def test_a_bug_comes_back_with_its_traceback(launcher: Launcher) -> None:
    with pytest.raises(ChildError, match="ZeroDivisionError: no batch") as caught:
        launcher.call("tests.harness.launched:broken", {}, limit=60)
    assert "in broken" in caught.value.failure.log_tail


def test_a_call_is_bounded_in_time(launcher: Launcher) -> None:
    with pytest.raises(ChildError, match="0.5 s") as caught:
        launcher.call("tests.harness.launched:sleeping", {}, limit=0.5)
    assert caught.value.failure.status == "timeout"


def test_ranks_meet_answer_in_order_and_tell_their_phases(launcher: Launcher, logs: Path) -> None:
    phases: list[str] = []
    outcome = launcher.run(
        "tests.harness.launched:together", {}, processes=3, log_folder=logs, limits=LIMITS, on_phase=phases.append
    )
    assert outcome.failure is None
    assert outcome.answers == [{"rank": rank, "sum": 3.0} for rank in range(3)]
    assert phases == ["build", "measure"]
    assert set(outcome.durations) == {"start", "build", "measure"}
    assert (logs / "rank2.log").read_text() == "hello from rank 2\n"


@pytest.mark.parametrize(
    ("fault", "status", "reason", "code"),
    [
        ("raise", "crashed", "rank 1 in measure raised RuntimeError: shapes do not match", 1),
        ("kill", "crashed", "rank 1 in measure was ended by SIGKILL", -9),
        ("exit", "crashed", "rank 1 in measure ended with exit status 0 and no result", 0),
        ("torch memory", "oom", "rank 1 in measure ran out of memory: ", 1),
        ("python memory", "oom", "rank 1 in measure ran out of memory: MemoryError", 1),
    ],
)
def test_the_first_failure_is_the_cause(
    launcher: Launcher, logs: Path, fault: str, status: str, reason: str, code: int
) -> None:
    outcome = launcher.run("tests.harness.launched:together", {"fault": fault}, processes=2, log_folder=logs, limits=LIMITS)
    failure = outcome.failure
    assert failure is not None
    assert failure.reason.startswith(reason)
    assert (failure.status, failure.rank, failure.phase, failure.exit_code) == (status, 1, "measure", code)
    assert failure.log_tail.startswith("hello from rank 1")
    assert outcome.answers == []


def test_a_hang_ends_at_the_phases_limit_and_shows_where_each_rank_was(launcher: Launcher, logs: Path) -> None:
    limits = {"build": 60.0, "measure": 1.0}
    failure = launcher.run(
        "tests.harness.launched:together", {"fault": "hang"}, processes=2, log_folder=logs, limits=limits
    ).failure
    assert failure is not None
    assert (failure.status, failure.rank, failure.phase) == ("timeout", 1, "measure")
    assert failure.reason.startswith("rank 1 did not finish measure in 1 s: ")
    assert "rank 0 in a wait for all_reduce (launched.py:" in failure.reason and "rank 1 in launched.py:" in failure.reason
    assert "rank 1:\nhello from rank 1\n" in failure.log_tail and "(most recent call first)" in failure.log_tail


def test_the_log_of_an_earlier_launch_is_not_taken_for_this_ones(launcher: Launcher, logs: Path) -> None:
    logs.mkdir()
    (logs / "rank1.log").write_text("yesterday\n")
    outcome = launcher.run("tests.harness.launched:together", {"fault": "raise"}, processes=2, log_folder=logs, limits=LIMITS)
    assert outcome.failure is not None and "yesterday" not in outcome.failure.log_tail
    assert (logs / "rank1.log").read_text().startswith("yesterday\nhello")


@pytest.mark.parametrize("fault", ["", "hang", "exit"])
def test_what_a_rank_started_ends_with_it(launcher: Launcher, logs: Path, fault: str) -> None:
    before = {p.pid for p in psutil.process_iter() if _is_sleep(p)}
    limits = {"build": 1.0 if fault else 60.0}
    launcher.run("tests.harness.launched:with_offspring", {"fault": fault}, processes=1, log_folder=logs, limits=limits)
    assert {p.pid for p in psutil.process_iter() if _is_sleep(p)} <= before


def test_nothing_stays_behind_when_the_harness_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "from pathlib import Path\n"
        "from harness.launch.local import Launcher\n"
        "with Launcher() as launcher:\n"
        "    launcher.run('tests.harness.launched:together', {'fault': 'hang'}, processes=2,\n"
        f"        log_folder=Path({str(tmp_path)!r}), limits={{'build': 600}}, on_phase=lambda p: print(p, flush=True))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline(), parent.stdout.readline()] == ["build\n", "measure\n"]
        # But for multiprocessing's resource tracker, which ends by itself once nobody uses it.
        children = psutil.Process(parent.pid).children(recursive=True)
        below = [p for p in children if "resource_tracker" not in " ".join(p.cmdline())]
        assert len(below) == 3  # the server and two ranks
        parent.kill()
    gone, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


def test_a_script_without_a_guard_can_launch(tmp_path: Path) -> None:
    """A child must not run the parent's script again, be it read from a file or from standard input."""
    script = (
        "from harness.launch.local import Launcher\n"
        "with Launcher() as launcher:\n"
        "    print(launcher.call('tests.harness.launched:echo', {'value': 1}, limit=60)['value'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-"], input=script, env=environment, capture_output=True, text=True, check=True)
    assert (answer.stdout, answer.stderr) == ("1\n", "")


def _is_sleep(process: psutil.Process) -> bool:
    try:
        return process.cmdline() == ["sleep", "600"] and time.time() - process.create_time() < 60
    except psutil.Error:
        return False
