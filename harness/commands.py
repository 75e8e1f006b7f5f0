"""What each command of the command line does, by its name. Imports no torch; what needs it runs in a child process."""

from __future__ import annotations

import argparse
import functools
import random
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml

from benchmarks.cell import Cell
from benchmarks.errors import UsageError, unknown
from benchmarks.layout import Layout
from benchmarks.site import Site, parse_bytes
from harness import matrix, store, suites
from harness.cli import CELL_OPTIONS, FIELDS
from harness.record import Status

if TYPE_CHECKING:
    from harness.launch.local import Launcher
    from harness.plan import Planned

JUDGE_SECONDS = 300.0
"""How long a child may take to judge the cells of a plan."""


def run(arguments: argparse.Namespace) -> int:
    """Measure the cells of a suite, or one cell."""
    from harness import run as running

    budget = _budget(arguments)
    if arguments.resume:
        return _resume(arguments, budget)
    if arguments.retry:
        raise UsageError(f"--retry {arguments.retry} runs cells of an earlier run again: give that run, too, by --resume DIR")
    suite, overrides = wanted(arguments)
    folder = _out(arguments, suite.name)
    store.check_new(folder)
    with _launcher(suites.layouts(suite, overrides)) as launcher:
        site, environment = _limited(*_detect(launcher), arguments.device_memory)
        planned = _judged(suite, overrides, arguments, site, launcher)
        if suite is suites.COMMAND_LINE:
            _refuse_what_cannot_run(planned)
        about = {"suite": suite.name, "description": suite.description, "arguments": sys.argv[1:]}
        seed = random.SystemRandom().getrandbits(32) if budget is None else None
        running.prepare(planned, folder, about=about, environment=environment, seed=seed)
        return _go(folder, arguments, launcher, budget)


def plan(arguments: argparse.Namespace) -> int:
    """Show the cells, which can run, why not the others, and how long it takes."""
    from harness.plan import describe

    budget = _budget(arguments)
    suite, overrides = wanted(arguments)
    given = Site.parse(arguments.devices) if arguments.devices else None
    with _launcher(suites.layouts(suite, overrides)) as launcher:
        here, _ = _detect(launcher)
        # Frameworks cannot be written down on the command line: those of this machine stand in.
        site = given.model_copy(update={"frameworks": here.frameworks}) if given else here
        print(describe(_judged(suite, overrides, arguments, site, launcher), site, budget_seconds=budget))
    print(f"next, on {'such a machine' if given else 'this machine'}: hpbench run SUITE with the same arguments")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Draw plots and report.html."""
    from harness.report import draw

    print(f"report: {draw(arguments.runs, arguments.out)}")
    return 0


def recommend(arguments: argparse.Namespace) -> int:
    """Say which layouts and techniques a run speaks for, and what it rules out."""
    from harness.recommend import recommend as judge
    from harness.recommend.text import as_json, as_text

    memory = parse_bytes(arguments.memory) if arguments.memory else None
    run = _read(arguments.run)
    found = judge(run, objective=arguments.objective, memory_bytes=memory)
    print(as_json(found) if arguments.json else as_text(found))
    return 0


def explain(arguments: argparse.Namespace) -> int:
    """Tell one record in sentences."""
    from harness.report.explain import explain as tell

    print(tell(_read(arguments.run), arguments.cell))
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Compare two runs cell by cell."""
    from harness import golden
    from harness.compare import compare as judge

    summary = Path(arguments.markdown) if arguments.markdown else None
    return judge(Path(arguments.base), Path(arguments.head), spreads=golden.spreads_for, summary=summary)


def gate(arguments: argparse.Namespace) -> int:
    """Measure two states in turn, and judge the second."""
    from harness.gate import Wanted
    from harness.gate import gate as judge

    if not (arguments.base or arguments.head or arguments.base_python or arguments.head_python):
        raise UsageError("base and head are the same: give --base a commit, branch or tag, or --base-python another Python")
    asked = Wanted(
        base=arguments.base or ".",
        head=arguments.head or ".",
        suite=arguments.suite,
        project=Path(arguments.project),
        install=arguments.install,
        pythons=(arguments.base_python or sys.executable, arguments.head_python or sys.executable),
        arguments=_repeated(arguments),
        pairs=arguments.pairs,
        most=max(arguments.pairs, arguments.max_pairs),
        golden=_golden(arguments),
    )
    return judge(asked, _out(arguments, arguments.command))


def calibrate(arguments: argparse.Namespace) -> int:
    """Run one state several times and keep how much its cells vary."""
    from harness.calibrate import calibrate as repeat

    if arguments.runs < 1:
        raise UsageError(f"--runs {arguments.runs}: give 3 or more, best 10")
    return repeat(arguments.suite, _repeated(arguments), arguments.runs, _out(arguments, arguments.command), _golden(arguments))


def golden(arguments: argparse.Namespace) -> int:
    """Hold the exact figures of runs against golden files."""
    from harness.golden import command

    return command([Path(run) for run in arguments.runs], _golden(arguments))


def history(arguments: argparse.Namespace) -> int:
    """Keep nightly runs, and find where a level changed."""
    from harness import history as kept

    folder = Path(arguments.store)
    if arguments.action == "add":
        return kept.add_runs(folder, [Path(run) for run in arguments.runs], arguments.commit)
    if arguments.action == "check":
        return kept.check(folder, Path(arguments.markdown) if arguments.markdown else None)
    if arguments.action == "show":
        return kept.show(folder, Path(arguments.out) if arguments.out else None)
    a = arguments
    return kept.accept_change(folder, a.cell, a.metric, a.commit, a.who, a.why)


def export(arguments: argparse.Namespace) -> int:
    """Write a run in a format that other programs read."""
    from harness.export import export as write

    text = write(Path(arguments.run), arguments.format)
    if not arguments.out:
        print(text, end="")
        return 0
    Path(arguments.out).write_text(text)
    print(f"{arguments.format}: {arguments.out}")
    return 0


def doctor(arguments: argparse.Namespace) -> int:
    """Show devices, frameworks and versions, and what to do about what is missing."""
    from harness.doctor import examine

    print(examine())
    return 0


def _read(folder: str) -> store.Run:
    """A run, with a word on each line that is left out, as it is no record."""
    run = store.read(folder)
    for line in run.bad_lines:
        where = f"line {line.number} of '{Path(folder) / store.RECORDS}'"
        print(f"hpbench: {where} could not be read and is left out: {line.reason}", file=sys.stderr)
    return run


def _repeated(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What `hpbench run` is told besides the suite."""
    chosen = ("--filter", arguments.filter) if arguments.filter else ()
    return (*chosen, *(word for text in arguments.set for word in ("--set", text)))


def _golden(arguments: argparse.Namespace) -> Path:
    from harness.golden import DIRECTORY

    return Path(arguments.golden) if arguments.golden else DIRECTORY


def _out(arguments: argparse.Namespace, name: str) -> Path:
    return Path(arguments.out or f"results/{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{name}")


def _budget(arguments: argparse.Namespace) -> float | None:
    from harness.budget import parse_budget

    return parse_budget(arguments.budget) if arguments.budget else None


def _resume(arguments: argparse.Namespace, budget: float | None) -> int:
    given = [f"--{option}" for option in CELL_OPTIONS if getattr(arguments, option) is not None]
    given += [f"--{name.replace('_', '-')}" for name in ("out", "filter", "set", "device_memory") if getattr(arguments, name)]
    retry = _statuses(arguments.retry)
    if arguments.suite or given:
        raise UsageError(
            f"--resume goes on with the cells of {arguments.resume}, and {arguments.suite or given[0]} was given, too: "
            "leave it out"
        )
    folder = Path(arguments.resume)
    run = store.read(folder)
    with _launcher(Cell.model_validate(entry["cell"]).layout for entry in run.run["cells"]) as launcher:
        _, here = _detect(launcher)
        if here["id"] != run.environment["id"]:
            raise UsageError(
                f"run '{folder}' was made in environment {run.environment['id']} and this is {here['id']}, "
                "whose figures do not compare: go on with it where it was begun, or start a new run"
            )
        return _go(folder, arguments, launcher, budget, retry)


def _statuses(text: str | None) -> list[str]:
    found = [status.strip() for status in text.split(",")] if text else []
    known = [status for status in get_args(Status) if status != "skipped"]
    for status in found:
        if status not in known:
            raise unknown("status", status, known, "in --retry")
    return found


def _limited(site: Site, environment: dict[str, Any], memory: str | None) -> tuple[Site, dict[str, Any]]:
    """The site whose processes have only so much memory."""
    if memory is None:
        return site, environment
    if site.kind != "cpu":
        raise UsageError(f"--device-memory {memory} is for CPUs, and this is {site}, whose devices have a memory: leave it out")
    limited = site.model_copy(update={"device_memory_bytes": parse_bytes(memory)})
    return limited, {**environment, "site": limited.model_dump(mode="json")}


def _go(
    folder: Path, arguments: argparse.Namespace, launcher: Launcher, budget: float | None, retry: Sequence[str] = ()
) -> int:
    from harness import run as running
    from harness.execute import run_cell
    from harness.references import References

    run = store.read(folder)
    site = Site.model_validate(run.environment["site"])
    finished = running.go(
        folder,
        functools.partial(
            run_cell,
            launcher=launcher,
            run_folder=folder,
            run_id=run.run["run_id"],
            environment_id=run.environment["id"],
            site=site,
            references=References(launcher, launcher.folder("references"), site),
        ),
        budget_seconds=budget,
        retry=retry,
        side_by_side=site if arguments.parallel_cells else None,
        stop=launcher.stop,
    )
    print(running.closing(folder))
    if arguments.report:
        from harness.report import draw

        print(f"report: {draw([folder])}")
    return running.exit_status(folder, strict=arguments.strict) if finished else running.INTERRUPTED


def wanted(arguments: argparse.Namespace) -> tuple[suites.Suite, dict[str, Any]]:
    """The suite and the fields that replace those of its cells."""
    overrides = {FIELDS.get(o, o): getattr(arguments, o) for o in CELL_OPTIONS if getattr(arguments, o) is not None}
    for text in arguments.set:
        field, separator, value = text.partition("=")
        if not separator or not field:
            raise UsageError(f"cannot read --set {text!r}: write FIELD=VALUE, for example protocol.measure_steps=10")
        try:
            overrides[field] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            overrides[field] = value
    if arguments.suite:
        return suites.load(arguments.suite), overrides
    if not overrides:
        names = ", ".join(sorted(path.stem for path in suites.SUITES.glob("*.yaml")))
        raise UsageError(
            f"nothing to {arguments.command}: name a suite ({names}, or a YAML file), or a cell by --model and --layout"
        )
    return suites.COMMAND_LINE, overrides


def _refuse_what_cannot_run(planned: Iterable[Planned]) -> None:
    for p in planned:
        if p.reason:
            raise UsageError(f"this cell cannot run: {p.reason}")


def _launcher(layouts: Iterable[Layout]) -> Launcher:
    from harness.launch.local import Launcher

    return Launcher(suites.implementations(layouts))


def _detect(launcher: Launcher) -> tuple[Site, dict[str, Any]]:
    from harness.environment import detect
    from harness.launch.local import ChildError

    try:
        return detect(launcher)
    except ChildError as error:
        raise UsageError(f"torch cannot be used here: {error}; see what to do with 'hpbench doctor'") from None


def _judged(
    suite: suites.Suite, overrides: dict[str, Any], arguments: argparse.Namespace, site: Site, launcher: Launcher
) -> list[Planned]:
    from harness.plan import judge

    most = None if arguments.yes else matrix.MOST_CELLS
    cells = matrix.expand(suite, site, overrides=overrides, filter_text=arguments.filter, most=most)
    return judge(cells, site, lambda function, payload: launcher.call(function, payload, limit=JUDGE_SECONDS))
