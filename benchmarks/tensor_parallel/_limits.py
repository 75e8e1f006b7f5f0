"""What no implementation of tensor parallelism can cut."""

from __future__ import annotations

from benchmarks import models
from benchmarks.cell import Cell


def sequence_problem(cell: Cell) -> str | None:
    """Why tensor ranks cannot share the sequence of the cell's samples, in a sentence; None if they can."""
    degree, sequence = cell.layout.degree("tp"), cell.batch.sequence
    if not models.reads_text(cell.model):
        return f"sequence parallelism shares the tokens of a sample, and the samples of {cell.model} are images: leave it out"
    if sequence % degree:
        return f"sequence parallelism shares {sequence} tokens over {degree} ranks: use a multiple of {degree}"
    return None


def loss_problem(cell: Cell) -> str | None:
    """Why tensor ranks cannot share the outputs that the loss is taken of, in a sentence; None if they can."""
    model, degree = models.load(cell.model), cell.layout.degree("tp")
    outputs = model.boundary(model.units[-1], 1, 1)[-1]
    if outputs % degree:
        return (
            f"loss parallelism cuts the {outputs} outputs of {cell.model} over {degree} ranks, and they stay whole where the "
            f"degree does not divide them: leave loss=true out, or use a degree that divides them"
        )
    return None
