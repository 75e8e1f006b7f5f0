"""Which parameters of a layer are cut, and along which dimension: what implementations on plain tensors share."""

from __future__ import annotations

from benchmarks.contract import Part


def note_cut(name: str, style: str, part: Part) -> None:
    """Let the placements of a layer's parameters say how they are cut; the bias of a row layer is not.

    Args:
        name: of the layer within the part.
        style: `column`, `head`, `vocabulary` or `row`.
    """
    cut = {"weight": 1} if style == "row" else {"weight": 0, "bias": 0}
    for own, dimension in cut.items():
        parameter = f"{name}.{own}"
        if parameter in part.placements:
            part.placements[parameter] = part.placements[parameter].sharded("tp", dimension)
