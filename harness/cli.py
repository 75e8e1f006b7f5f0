"""The command line: `hpbench COMMAND`. Only reads arguments; each command is imported when it is called.

Starting costs a fraction of a second, as neither torch nor anything else that is slow is imported here. A mistake in
what was asked for is one sentence on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from benchmarks.errors import UsageError, unknown

USAGE = 2
"""Exit status after a mistake in what was asked for."""

CELL_OPTIONS = {
    "model": ("NAME", "a model and its size, such as llama-tiny; options in brackets: 'llama-8b[blocks=4]'"),
    "layout": ("LAYOUT", "how it is spread: 'single' or axis=degree:implementation, comma separated, such as 'tp=2,dp=2'"),
    "world": ("N", "number of devices, where a degree of the layout is '*'"),
    "precision": ("NAME", "fp32, bf16, fp16 or fp8"),
    "checkpointing": ("NAME", "none, selective, every-4, every-3, every-2, full, fairscale or deepspeed"),
    "offload": ("NAME", "none or activations"),
    "compile": ("NAME", "none, block or model"),
    "clip": ("NORM", "largest global gradient norm; 0 leaves gradients as they are"),
    "batch": ("N", "samples per step over all devices; 'max': as many as fit in each microbatch"),
    "microbatches": ("N", "into how many parts each data rank's share of the batch is cut"),
    "sequence": ("N", "tokens per sample"),
    "seed": ("N", "of weights and data"),
    "text": ("FILE", "text to train on, instead of the source of Python's standard library"),
}
"""Option -> what stands for its value, and help. Each is short for a `--set`."""

FIELDS = {"batch": "batch.global", "microbatches": "batch.microbatches", "sequence": "batch.sequence", "text": "data"}
"""Option -> field of a cell, where they differ."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="hpbench",
        allow_abbrev=False,
        description="Trains the same models under every way PyTorch offers to spread them over devices, "
        "proves that each computes the same step, and records what it costs in time and memory.",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    run = commands.add_parser("run", allow_abbrev=False, help="measure the cells of a suite, or one cell")
    _add_cells(run)
    run.add_argument("--out", metavar="DIR", help="run folder, new or empty; default: results/<time>-<suite>")
    run.add_argument("--resume", metavar="DIR", help="go on with a run: measure the cells of DIR that have no record")
    run.add_argument(
        "--retry", metavar="STATUS,...", help="with --resume: also those that ended so, such as oom,timeout,crashed"
    )
    run.add_argument("--device-memory", metavar="SIZE", help="what each process on CPUs may ask for, such as 2GiB")
    run.add_argument(
        "--parallel-cells", action="store_true", help="run small cells side by side on disjoint devices; their times suffer"
    )
    _add_budget(run)
    run.add_argument("--strict", action="store_true", help="out of memory counts as a failure, too")
    run.add_argument("--report", action="store_true", help="draw the report at the end, however the cells ended")

    plan = commands.add_parser(
        "plan", allow_abbrev=False, help="show the cells, which can run, why not the others, how long it takes"
    )
    _add_cells(plan)
    _add_budget(plan)
    plan.add_argument("--devices", metavar="SITE", help="instead of this machine, such as 8xcuda:80GiB or 2xcpu:16GiB")

    report = commands.add_parser("report", allow_abbrev=False, help="draw plots and report.html from records")
    report.add_argument("runs", nargs="+", metavar="RUN", help="run folder; several are set side by side")
    report.add_argument("--out", metavar="DIR", help="where to; default: the first run's folder")

    recommend = commands.add_parser(
        "recommend", allow_abbrev=False, help="say which layouts and techniques a run speaks for, and what it rules out"
    )
    recommend.add_argument("run", metavar="RUN", help="run folder")
    recommend.add_argument("--memory", metavar="SIZE", help="rule out what needs more on one device, such as 80GiB")
    recommend.add_argument("--objective", choices=("throughput", "memory"), default="throughput", help="what is best")
    recommend.add_argument("--json", action="store_true", help="for programs")

    explain = commands.add_parser("explain", allow_abbrev=False, help="tell one record in sentences")
    explain.add_argument("run", metavar="RUN", help="run folder")
    explain.add_argument("cell", metavar="CELL", help="cell id, or the first characters of one")

    compare = commands.add_parser("compare", allow_abbrev=False, help="compare two runs cell by cell")
    compare.add_argument("base", metavar="BASE", help="run folder, or a folder of several, to compare with")
    compare.add_argument("head", metavar="HEAD", help="run folder, or a folder of several, to judge")
    compare.add_argument("--markdown", metavar="FILE", help="write the verdicts there as Markdown, too")

    gate = commands.add_parser(
        "gate", allow_abbrev=False, help="measure two commits or two Pythons in turn, and judge the second"
    )
    gate.add_argument("--base", metavar="REF", help="commit, branch or tag to compare with; default: the files as they stand")
    gate.add_argument("--head", metavar="REF", help="the one to judge; default: the files as they stand")
    gate.add_argument("--base-python", metavar="FILE", help="Python of base, such as one with another torch; default: this one")
    gate.add_argument("--head-python", metavar="FILE", help="Python of head; default: this one")
    gate.add_argument("--install", metavar="CMD", help="how a checkout is installed, such as 'pip install .'")
    gate.add_argument("--project", metavar="DIR", default=".", help="repository of the commits; default: the one you are in")
    gate.add_argument("--pairs", metavar="N", type=int, default=5, help="pairs of runs before the first verdict")
    gate.add_argument(
        "--max-pairs", metavar="N", type=int, default=10, help="pairs of runs after which what is not clear stays so"
    )
    _add_repeated(gate)

    calibrate = commands.add_parser(
        "calibrate", allow_abbrev=False, help="run one state several times: how much do its cells vary?"
    )
    calibrate.add_argument("--runs", metavar="N", type=int, default=10, help="how often")
    _add_repeated(calibrate)

    golden = commands.add_parser(
        "golden", allow_abbrev=False, help="hold the exact figures of runs against those in configs/golden"
    )
    golden.add_argument("runs", nargs="+", metavar="RUN", help="run folder; several of one machine and state")
    _add_golden(golden)

    _add_history(commands.add_parser("history", allow_abbrev=False, help="keep nightly runs, and find where a level changed"))

    export = commands.add_parser("export", allow_abbrev=False, help="write a run in a format that other programs read")
    export.add_argument("run", metavar="RUN", help="run folder")
    export.add_argument("--format", metavar="NAME", required=True, help="the name of a file in harness/export, such as junit")
    export.add_argument("--out", metavar="FILE", help="where to; default: standard output")

    commands.add_parser(
        "doctor", allow_abbrev=False, help="show devices, frameworks and versions, and what to do about what is missing"
    )
    return top


def _add_repeated(command: argparse.ArgumentParser) -> None:
    command.add_argument("suite", nargs="?", metavar="SUITE", default="gate", help="a suite as for 'run'; default: gate")
    command.add_argument("--filter", metavar="EXPR", help="only cells that match, such as 'precision=bf16,tp=2'")
    command.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="any field of the cells")
    command.add_argument("--out", metavar="DIR", help="folder for the runs, new or empty; default: results/<time>-<command>")
    _add_golden(command)


def _add_golden(command: argparse.ArgumentParser) -> None:
    command.add_argument("--golden", metavar="DIR", help="folder of golden files; default: configs/golden")


def _add_history(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    add = actions.add_parser("add", allow_abbrev=False, help="add the runs of one night; three are a good number")
    add.add_argument("runs", nargs="+", metavar="RUN", help="run folder")
    add.add_argument("--commit", metavar="ID", help="what was measured; default: the commit of hpbench that the runs recorded")
    check = actions.add_parser("check", allow_abbrev=False, help="say which levels changed; exit status 1 where one rose")
    check.add_argument("--markdown", metavar="FILE", help="write it there as Markdown, too")
    show = actions.add_parser("show", allow_abbrev=False, help="list every series and draw it")
    show.add_argument("--out", metavar="DIR", help="folder for the pictures; default: plots in the store")
    accept = actions.add_parser("accept", allow_abbrev=False, help="note that a change is meant")
    accept.add_argument("cell", metavar="CELL", help="cell id, or the first characters of one")
    accept.add_argument("metric", metavar="METRIC", help="step_seconds or peak_memory_bytes")
    accept.add_argument("commit", metavar="COMMIT", help="the first one on the new level")
    accept.add_argument("--who", metavar="NAME", required=True)
    accept.add_argument("--why", metavar="REASON", required=True)
    for action in (add, check, show, accept):
        action.add_argument("--store", metavar="DIR", required=True, help="folder of the history")


def _add_budget(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--budget",
        metavar="TIME",
        help="such as 90s, 30m or 2h: the most informative cells first, and what does not fit left out",
    )


def _add_cells(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "suite", nargs="?", metavar="SUITE", help="a name in configs/suites, or a YAML file; without it, one cell"
    )
    command.add_argument("--yes", action="store_true", help="even if there are more than 10,000 cells")
    command.add_argument("--filter", metavar="EXPR", help="only cells that match, such as 'precision=bf16,tp=2'")
    cell = command.add_argument_group("fields of the cell, or of every cell of the suite")
    for option, (metavar, text) in CELL_OPTIONS.items():
        cell.add_argument(f"--{option}", metavar=metavar, help=text)
    cell.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="any other field, such as protocol.measure_steps=10"
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read arguments.

    Raises:
        UsageError: an unknown command or option, or one too many.
    """
    top = parser()
    arguments, rest = top.parse_known_args(argv)
    if rest:
        if not rest[0].startswith("-"):
            raise UsageError(f"unexpected argument {rest[0]!r}; see 'hpbench {arguments.command} --help'")
        known = [
            f"--{name.replace('_', '-')}"
            for name in vars(arguments)
            if name not in ("command", "action", "suite", "runs", "run", "cell", "metric", "commit")
            and not (arguments.command == "compare" and name in ("base", "head"))
        ]
        raise unknown("option", rest[0].partition("=")[0], known or ["--help"], f"of 'hpbench {arguments.command}'")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    try:
        arguments = parse(argv)
        from harness import commands

        return getattr(commands, arguments.command)(arguments)
    except UsageError as error:
        print(f"hpbench: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `hpbench plan ... | head`
        sys.stderr.close()
        return 0


if __name__ == "__main__":
    sys.exit(main())
