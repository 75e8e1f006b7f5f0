"""Which cells can run, asked once for all cells of a plan. Runs in a child process that has torch loaded."""

from __future__ import annotations

from typing import Any

from benchmarks import compose, footprint, models
from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from benchmarks.reference import verification_model
from benchmarks.site import Site


def answer(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Judge cells on a site.

    Args:
        payload: `cells`, each as JSON, and `site` as JSON.

    Returns:
        Per cell, in order: `processes`, `reason` (None where it can run) and, of one that can run, `flops` of one step,
        `parameters` of its model, `verified_parameters` of the one that stands in for it in verification, and `memory_bytes`,
        an estimate of what its fullest device needs.

    Raises:
        UsageError: a cell asks for what does not exist, such as a misspelt knob.
    """
    site = Site.model_validate(payload["site"])
    return [_judge(Cell.model_validate(cell), site) for cell in payload["cells"]]


def _judge(cell: Cell, site: Site) -> dict[str, Any]:
    try:
        processes = compose.processes(cell.layout)
    except UsageError:
        raise
    except Exception:  # `illegal` says which package is missing, or broken
        processes = cell.devices
    cell = cell.model_copy(update={"processes": processes})
    reason = compose.illegal(cell, site)
    answer = {"processes": processes, "reason": reason}
    if reason is None:
        model = models.load(cell.model)
        answer["flops"] = model.training_flops(cell.batch.global_size, cell.batch.sequence)
        answer["parameters"] = model.parameter_count()
        given = cell.protocol.reference_bytes
        verified = verification_model(cell, site.usable_bytes if given is None else given)
        answer["verified_parameters"] = models.load(verified).parameter_count()
        answer["memory_bytes"] = footprint.footprint(cell).total
    return answer
