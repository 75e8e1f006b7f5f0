"""A recommendation, told in sentences or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from benchmarks.site import Site
from harness.recommend import Recommendation
from harness.recommend.choose import Advice, RuledOut
from harness.recommend.techniques import Bought, Ratio
from harness.report.words import CPU_SENTENCE, amount, number
from harness.table import counted


def as_json(found: Recommendation) -> str:
    """All of it, indented."""
    return json.dumps(dataclasses.asdict(found), indent=1)


def as_text(found: Recommendation) -> str:
    """All of it, in sentences."""
    return "\n".join(_lines(found))


def _lines(found: Recommendation) -> Iterator[str]:
    if not found.ranks:
        yield f"{CPU_SENTENCE} What follows is what it saw, no advice for another machine."
    limit = f", at most {amount(found.memory_bytes, 'bytes')} a device" if found.memory_bytes is not None else ""
    site = f" on {Site.model_validate(found.site)}" if found.site else ""
    yield f"{found.run}{site}, environment {found.environment}; objective: {found.objective}{limit}"
    if found.without_record:
        yield (
            f"{counted(found.without_record, 'cell')} of the run left out or not yet run, so this may change: "
            f"hpbench run --resume {found.run}"
        )
    if not found.models:
        yield "no cell has a record: nothing can be recommended"
    for advice in found.models:
        yield ""
        yield from _model(advice, found)
    if found.techniques:
        yield ""
        yield "techniques, from pairs of cells that differ in nothing else"
        yield from (f"  {_technique(one)}" for one in found.techniques)
    yield ""
    yield f"next: hpbench explain {found.run} CELL"


def _model(advice: Advice, found: Recommendation) -> Iterator[str]:
    verified = f"{counted(advice.asked, 'cell')} asked for, {advice.verified} verified"
    yield f"{advice.model}, batch {advice.global_batch}x{advice.sequence}: {verified}"
    word = "best" if found.ranks else {"throughput": "fastest here", "memory": "leanest here"}[found.objective]
    if advice.best is None:
        yield "  no verified and timed cell is left: nothing can be recommended"
    else:
        yield f"  {word}: {advice.best.name} [{advice.best.cell}]: {advice.best.why}"
    for choice in advice.alternatives:
        yield f"  or: {choice.name} [{choice.cell}]: {choice.why}"
    yield from _ruled_out(advice.ruled_out)


def _ruled_out(cells: list[RuledOut]) -> Iterator[str]:
    """One line for each reason, with all cells that have it."""
    names: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        figures = f" ({cell.figures})" if cell.figures else ""
        names.setdefault((cell.kind, cell.why), []).append(f"{cell.name} [{cell.cell}]{figures}")
    for (kind, why), those in sorted(names.items(), key=lambda entry: entry[0][0]):
        yield f"  ruled out, {kind}: {' · '.join(those)}: {why}"


def _technique(one: Bought) -> str:
    said = [f"{one.model}, {one.technique}, {counted(one.pairs, 'pair')}: {one.advice}"]
    if one.time:
        said.append(f"a step takes {_times(one.time)} the time")
    if one.memory:
        said.append(f"the peak is {_times(one.memory)} as high")
    if one.example:
        said.append(f"for example {one.example}")
    if one.made_fit:
        said.append(f"ran only with it: {' · '.join(one.made_fit)}")
    if one.failed:
        said.append(f"ran only without it: {' · '.join(one.failed)}")
    return "; ".join(said)


def _times(ratio: Ratio) -> str:
    spread = "" if ratio.least == ratio.most else f" ({number(ratio.least)} to {number(ratio.most)})"
    return f"{number(ratio.median)} times{spread}"
