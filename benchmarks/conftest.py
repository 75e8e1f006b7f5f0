"""What `pytest benchmarks` needs: the option `--suite`, and one run folder for all cells. Not part of what is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from benchmarks.errors import UsageError
from harness import matrix, run, store, suites
from harness.environment import detect
from harness.execute import run_cell
from harness.launch.local import Launcher
from harness.plan import Planned, judge
from harness.record import Record
from harness.references import References

JUDGE_SECONDS = 300.0


class Measured:
    """The cells of a suite on this machine, measured one at a time into a run folder.

    Args:
        suite: a name in `configs/suites`, or a YAML file.
        parameters: folder for the parameters of references.
    """

    def __init__(self, suite: str, folder: Path, parameters: Path):
        wanted = suites.load(suite)
        self._launcher = Launcher(suites.implementations(suites.layouts(wanted))).__enter__()
        self.site, self.environment = detect(self._launcher)
        self._references = References(self._launcher, parameters, self.site)
        cells = matrix.expand(wanted, self.site)
        self.planned = judge(cells, self.site, lambda name, payload: self._launcher.call(name, payload, limit=JUDGE_SECONDS))
        self.folder, self.suite = folder, wanted

    def measure(self, planned: Planned) -> Record:
        """One cell, verified and measured; its record is kept, too."""
        if not self.folder.exists():
            about = {"suite": self.suite.name, "description": self.suite.description, "arguments": ["pytest", "benchmarks"]}
            run.prepare(self.planned, self.folder, about=about, environment=self.environment, seed=None)
        record = run_cell(
            planned.cell,
            launcher=self._launcher,
            run_folder=self.folder,
            run_id=self.folder.name,
            environment_id=self.environment["id"],
            site=self.site,
            references=self._references,
        )
        store.append(self.folder, record)
        return record


MEASURED = pytest.StashKey[Measured]()
PARAMETERS = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hpbench")
    group.addoption("--suite", default="gate", help="suite whose cells are measured: a name in configs/suites, or a YAML file")
    group.addoption("--out", default=None, help="run folder, new or empty; default: results/<time>-pytest-<suite>")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each cell, named like its exported figures."""
    if "planned" not in metafunc.fixturenames:
        return
    from harness.export import names_of

    try:
        planned = _measured(metafunc.config).planned
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    titles = names_of([p.cell for p in planned])
    metafunc.parametrize("planned", planned, ids=[titles[p.cell.id] for p in planned])


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Iterator[Measured]:
    """The run that the cells of this session make up."""
    yield _measured(request.config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where the records lie."""
    if MEASURED in config.stash and config.stash[MEASURED].folder.exists():
        folder = config.stash[MEASURED].folder
        terminalreporter.write_line(f"records: {folder / store.RECORDS}; next: hpbench report {folder}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if PARAMETERS in config.stash:
        config.stash[PARAMETERS].cleanup()


def _measured(config: pytest.Config) -> Measured:
    if MEASURED not in config.stash:
        suite = config.getoption("suite")
        config.stash[PARAMETERS] = tempfile.TemporaryDirectory(prefix="hpbench-references-")
        now = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
        folder = Path(config.getoption("out") or f"results/{now}-pytest-{Path(suite).stem}")
        store.check_new(folder)
        config.stash[MEASURED] = Measured(suite, folder, Path(config.stash[PARAMETERS].name))
    return config.stash[MEASURED]
