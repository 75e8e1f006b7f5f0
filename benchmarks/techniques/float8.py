"""Products in 8 bits: the Linears of blocks multiply in fp8, by torchao (Micikevicius et al., FP8 Formats, 2022).

Right before each product, inputs and weights are scaled so that their largest element fills the range, and rounded to e4m3
(4 bits of exponent, 3 of mantissa); gradients to e5m2. Results come out in bf16, in which all else computes under autocast.
Parameters, gradients, reduction and optimizer state stay fp32, as in `bf16`.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import Part
from benchmarks.site import Site

LEAST_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs whose tensor cores multiply fp8, Ada Lovelace."""
MULTIPLE = 16
"""Kernels take matrices whose sides are multiples of this."""


def apply_float8(part: Part, *, emulate: bool = False) -> None:
    """Swap the Linears in `part`'s blocks, which keep their parameters; called before anything wraps a block.

    Args:
        emulate: round to fp8 and multiply in fp32, which any device can.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    for name in part.blocks:
        convert_to_float8_training(
            part.module.get_submodule(name),
            config=Float8LinearConfig(emulate=emulate),
            module_filter_fn=lambda module, _: isinstance(module, nn.Linear) and _divides(module.weight),
        )


def float8_problem(cell: Cell, site: Site) -> str | None:
    """Why the site cannot multiply the cell's products in fp8, in one sentence; None if it can, or the cell has none."""
    if cell.precision != "fp8":
        return None
    if site.kind != "cuda":
        return "fp8 products need the tensor cores of a GPU: choose another precision, or a machine with one"
    if importlib.util.find_spec("torchao") is None:
        return "fp8 products are torchao's, which is not installed: pip install torchao"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        found = ".".join(map(str, torch.cuda.get_device_capability()))
        return f"fp8 products need a GPU of compute capability 8.9 or more, and this one has {found}: choose another precision"
    if cell.layout.degree("tp") > 1:
        return "torchao swaps whole Linears, and tensor parallelism has cut them before: leave out tp, or choose bf16"
    model = models.load(cell.model)
    with torch.device("meta"):
        linears = [m for m in model.build(model.blocks[0]).modules() if isinstance(m, nn.Linear) and _divides(m.weight)]
    if not linears:
        return (
            f"fp8 products are those of Linears whose sides are multiples of {MULTIPLE}, and blocks of {cell.model} have none"
        )
    return None


def _divides(weight: torch.Tensor) -> bool:
    return not any(size % MULTIPLE for size in weight.shape)
