"""Golden files: what cells gave on a class of machines, and how much their times vary there. Needs no torch.

    hpbench golden RUN...          hold runs against the file of their machine; either direction fails
    hpbench calibrate SUITE        make the file, from runs of one and the same state

`configs/golden/<machine>.yaml` holds, for each cell, the exact figures (`harness.compare.exact`): one number where the runs
it was made from were bit-identical, and `[least, largest]` where they were not; and `spread`, from which the change of a time
that counts follows. Changing a figure on purpose means committing the changed file beside the code that changed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.errors import UsageError
from harness.compare.exact import COLLECTIVES, TRAINED, Value, Values, against, aligned, bounds, exact_values, held, written
from harness.compare.verdicts import Comparison, Verdict, title
from harness.problems import usage_error
from harness.record import Record
from harness.report.words import STATUS_WORDS, slug
from harness.store import Run

DIRECTORY = Path(__file__).parent.parent / "configs" / "golden"
SCHEMA = 1


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Expected(_Data):
    """What is known of one cell."""

    name: str
    """For people; the id is what counts."""
    spread: float | None = None
    """Run-to-run spread of the step time; None: not calibrated."""
    figures: dict[str, float | tuple[float, float]] = {}
    """Exact metric -> value, or its least and largest."""


class Golden(_Data):
    """One golden file."""

    schema_version: int = SCHEMA
    machine: str
    runs: int
    """How many it was made from."""
    cells: dict[str, Expected] = {}
    """By cell id."""


def machine_class(environment: Mapping[str, Any]) -> str:
    """The name of the machines that share exact figures: their processor or device, and torch, which computes them."""
    devices = environment.get("devices") or []
    name = devices[0]["name"] if devices else f"{environment.get('processor')} {environment.get('cpu_capability') or ''}"
    torch = environment.get("site", {}).get("frameworks", {}).get("torch", "unknown")
    return slug(f"{name} torch {torch}").lower()


def path_of(environment: Mapping[str, Any], directory: Path = DIRECTORY) -> Path:
    """Where the golden file of a machine is, if there is one."""
    return directory / f"{machine_class(environment)}.yaml"


def read(path: Path) -> Golden | None:
    """The golden file; None where there is none.

    Raises:
        UsageError: it is of another schema, or no golden file.
    """
    if not path.exists():
        return None
    try:
        content = yaml.safe_load(path.read_text())
        found = content.get("schema_version", SCHEMA) if isinstance(content, dict) else None
        if found != SCHEMA:
            raise UsageError(
                f"'{path}' is of schema {found!r}, and this hpbench reads schema {SCHEMA}: "
                "use the hpbench that wrote it, or make it anew by 'hpbench calibrate'"
            )
        return Golden.model_validate(content)
    except ValidationError as error:
        raise usage_error(error, Golden, f"in '{path}'") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot read '{path}': {' '.join(str(error).split())}; make it anew by 'hpbench calibrate'") from None


def spreads_for(environment: Mapping[str, Any], directory: Path = DIRECTORY) -> dict[str, float]:
    """Cell id -> calibrated spread on this class of machine."""
    golden = read(path_of(environment, directory))
    return {cell: known.spread for cell, known in golden.cells.items() if known.spread is not None} if golden else {}


def made(runs: Sequence[Run], spreads: Mapping[str, float] | None = None, before: Golden | None = None) -> Golden:
    """A golden file of runs of one state.

    Args:
        spreads: cell id -> spread, where it was calibrated by these runs.
        before: the file there is: cells that the runs do not have stay, and so do spreads that are not given.
    """
    known = dict(before.cells) if before else {}
    for cell_id, records in measured(runs).items():
        values = aligned([exact_values(record) for record in records])
        figures: dict[str, float | tuple[float, float]] = {}
        for metric in values[0]:
            if all(metric in run for run in values):
                low, high = bounds(values, metric)
                figures[metric] = low.number if low == high else (low.number, high.number)
        old = known[cell_id].spread if cell_id in known else None
        spread = (spreads or {}).get(cell_id, old)
        known[cell_id] = Expected(name=title(records[0].cell), spread=spread, figures=figures)
    return Golden(machine=machine_class(runs[0].environment), runs=len(runs), cells=known)


def save(golden: Golden, path: Path) -> None:
    """Write a golden file; the same content gives the same bytes, cells in the order of their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = golden.model_dump(mode="json")
    for cell in content["cells"].values():
        cell["figures"] = {metric: _short(figure) for metric, figure in cell["figures"].items()}
    content["cells"] = dict(sorted(content["cells"].items(), key=lambda item: (item[1]["name"], item[0])))
    path.write_text(
        "# Made by 'hpbench calibrate' or 'hpbench golden'; see harness/golden.py.\n"
        + yaml.safe_dump(content, sort_keys=False, width=128)
    )


def _short(figure: float | list[float]) -> Any:
    """Whole numbers without a decimal point, as bytes and counts are."""
    if isinstance(figure, list):
        return [_short(bound) for bound in figure]
    return int(figure) if figure.is_integer() else figure


def check(runs: Sequence[Run], golden: Golden | None) -> Comparison:
    """Hold the exact figures of runs against a golden file; either direction is a finding."""
    verdicts: list[Verdict] = []
    without: dict[str, int] = {}
    for cell_id, records in _by_cell(runs).items():
        about = {"cell_id": cell_id, "name": title(records[0].cell)}
        ended = next((record for record in records if record.status != "ok"), None)
        expected = golden.cells.get(cell_id) if golden else None
        if ended is None and expected is None:
            verdicts.append(Verdict(**about, metric="", word="missing baseline", why="the golden file has no figures of it"))
        elif ended is None and expected is not None:
            verdicts += _against(about, records, expected)
        elif expected is None and ended.status in ("skipped", "oom"):
            without[STATUS_WORDS[ended.status]] = without.get(STATUS_WORDS[ended.status], 0) + 1
        else:
            why = f"{STATUS_WORDS[ended.status]}: {ended.reason or 'no reason was recorded'}"
            verdicts.append(Verdict(**about, metric="", word="errored", why=why))
    return Comparison(verdicts=tuple(verdicts), without_figures=without)


def _against(about: Mapping[str, str], records: Sequence[Record], expected: Expected) -> list[Verdict]:
    known: Values = {}
    runs = aligned([exact_values(record) for record in records])
    found = []
    units = {metric: value.unit for run in runs for metric, value in run.items()}
    for metric, figure in expected.figures.items():
        low, high = (Value(f, units.get(metric, "")) for f in (figure if isinstance(figure, tuple) else (figure, figure)))
        known[metric] = low
        if metric.startswith(COLLECTIVES):
            runs = [{metric: Value(0, "calls"), **run} for run in runs]
        if not all(metric in run for run in runs):
            if not metric.startswith(TRAINED):
                found.append(Verdict(**about, metric=metric, word="errored", exact=True, why="was not measured"))
            continue
        word, farthest = against(low, high, *bounds(runs, metric))
        found.append(Verdict(**about, metric=metric, word=word, exact=True, why=f"{held(low, high)} -> {written(farthest)}"))
    for metric in dict.fromkeys(name for run in runs for name in run):
        if metric not in known and not metric.startswith(TRAINED):
            new = metric.startswith(COLLECTIVES)
            word, why = ("regressed", f"0 calls -> {written(runs[0][metric])}") if new else ("missing baseline", "is new")
            found.append(Verdict(**about, metric=metric, word=word, exact=True, why=why))
    return found


def measured(runs: Iterable[Run]) -> dict[str, list[Record]]:
    """Cell id -> its records that have figures, of the cells that ended ok in every run that has them."""
    return {cell: records for cell, records in _by_cell(runs).items() if all(record.status == "ok" for record in records)}


def _by_cell(runs: Iterable[Run]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for run in runs:
        for record in {record.cell_id: record for record in run.records}.values():
            found.setdefault(record.cell_id, []).append(record)
    return found


def command(folders: Sequence[Path], directory: Path = DIRECTORY) -> int:
    """What `hpbench golden` does: print the verdicts, and where something differs, write the file to commit.

    Returns:
        0: all as expected; 1: a figure differs; 2: there is nothing to hold it against.
    """
    from harness.compare import whole
    from harness.compare import written as text_of

    runs = [whole(folder) for folder in folders]
    classes = {machine_class(run.environment) for run in runs}
    if len(classes) > 1:
        raise UsageError(f"the runs are of several machines, {' and '.join(sorted(classes))}: give those of one")
    path = path_of(runs[0].environment, directory)
    before = read(path)
    comparison = check(runs, before)
    print(text_of(comparison, str(path), ", ".join(map(str, folders))))
    if comparison.exit_status:
        proposal = folders[-1] / "golden" / path.name
        save(made(runs, before=before), proposal)
        print(f"what these runs gave: {proposal}")
        print(f"next, if that is what is meant: cp '{proposal}' '{path}' && git add '{path}' && git commit")
    return comparison.exit_status
