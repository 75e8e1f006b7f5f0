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
    "checkpointing": ("NAME", "none, selective, every-4, every-3, every-2 or full"),
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

    commands.add_parser(
        "doctor", allow_abbrev=False, help="show devices, frameworks and versions, and what to do about what is missing"
    )
    return top


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
            f"--{name}" for name in vars(arguments) if name not in ("command", "suite", "runs", "run", "cell", "base", "head")
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
