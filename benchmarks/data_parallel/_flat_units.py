"""What the wrappers share that flatten the parameters of a unit into one tensor and keep 1/N of it: FairScale's, and torch's
FSDP1, which was made from it."""

from __future__ import annotations

from benchmarks.cell import Cell
from benchmarks.contract import (
    NESTS_BACKWARD,
    SEVERAL_DEVICES,
    SEVERAL_IN_FLIGHT,
    SPLITS_BACKWARD,
    TIED_ACROSS_STAGES,
    Shares,
)
from benchmarks.site import Site


def flat_shares(cell: Cell, *, reshard: bool) -> Shares:
    """What a rank holds of flattened units."""
    part = 1 / cell.layout.degree("dp")
    gradients = part if cell.batch.microbatches == 1 else 1.0
    return Shares(parameters=part, gradients=gradients, optimizer_state=part, gathered="blocks" if reshard else "all")


def flat_problem(wrapper: str, hook: str, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
    """Why flattened units cannot serve a pipeline, in one sentence; None if they can.

    Args:
        wrapper: what to call it.
        hook: where upstream it frees a unit.
    """
    if SEVERAL_IN_FLIGHT in traits and cell.batch.microbatches > 1:
        return (
            f"{wrapper} frees a unit's parameters after the backward of one microbatch ({hook}), while those of others in "
            "flight still need them: use FSDP2, or one microbatch"
        )
    if TIED_ACROSS_STAGES in traits:
        return (
            "the two copies of a weight that stages share lie at different places of two flattened units, so that a rank "
            "holds other elements of the one than of the other, and their gradients cannot be summed: use FSDP2"
        )
    if SPLITS_BACKWARD in traits:
        return (
            f"a schedule that computes weight gradients apart writes them without the hooks by which {wrapper} reduces "
            "(torch/distributed/pipelining/_backward.py): choose a schedule with whole backwards"
        )
    if NESTS_BACKWARD in traits:
        return (
            f"a pipeline that checkpoints whole stages runs a unit's forward again inside backward, where {wrapper} has freed "
            f"its parameters ({hook}): let the pipeline checkpoint nothing, and choose checkpointing full"
        )
    if SEVERAL_DEVICES in traits and site.kind == "cuda":
        return (
            f"{wrapper} takes the parameters of a process to be on one device, and this pipeline holds them on several: choose "
            "a pipeline with a process for each stage"
        )
    return None
