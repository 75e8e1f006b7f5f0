"""`hpbench recommend RUN`: what the records of a run say one should use. Reads records alone and needs no torch.

For each model and amount of work: the best verified layout for an objective, what else is worth a thought, what was ruled
out and why; and for each model, from pairs of cells that differ in nothing else, what a technique bought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.recommend.choose import Advice, Objective, choose
from harness.recommend.figures import Seen, seen
from harness.recommend.techniques import Bought, bought
from harness.report.words import caveat_word
from harness.store import Run

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """All that a run says; as JSON with the same names."""

    run: str
    environment: str
    """Id of the environment: advice holds for that machine and its software."""
    site: dict[str, Any]
    objective: Objective
    memory_bytes: int | None
    """What a device may hold; None: what it has."""
    ranks: bool
    """Whether the run's figures rank layouts; those of a CPU do not."""
    without_record: int
    """Cells that were asked for and left out, or not yet run."""
    models: list[Advice]
    """One for each model and amount of work, in the order of the records."""
    techniques: list[Bought]
    schema: int = SCHEMA


def recommend(run: Run, *, objective: Objective = "throughput", memory_bytes: int | None = None) -> Recommendation:
    """Judge a run.

    Args:
        memory_bytes: cells whose fullest rank needs more are ruled out.
    """
    # A resumed run may have tried a cell again; the last word counts.
    cells = [seen(record) for record in {record.cell_id: record for record in run.records}.values()]
    return Recommendation(
        run=str(run.folder),
        environment=run.environment.get("id", ""),
        site=run.environment.get("site", {}),
        objective=objective,
        memory_bytes=memory_bytes,
        ranks=_ranks(cells),
        without_record=max(0, len(run.run.get("cells", [])) - len(cells)),
        models=[choose(work, objective, memory_bytes) for work in _works(cells)],
        techniques=bought(cells),
    )


def _ranks(cells: Sequence[Seen]) -> bool:
    return not any(caveat_word(caveat) == "cpu" for cell in cells for caveat in cell.record.caveats)


def _works(cells: Sequence[Seen]) -> list[list[Seen]]:
    """Cells that train the same model on the same batches with the same optimizer."""
    works: dict[tuple[str, ...], list[Seen]] = {}
    for cell in cells:
        c = cell.record.cell
        key = (c.model, str(c.batch.global_size), str(c.batch.sequence), c.optimizer.model_dump_json(), c.data)
        works.setdefault(key, []).append(cell)
    return list(works.values())
