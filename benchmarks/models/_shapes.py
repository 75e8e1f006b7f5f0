"""The shapes of a model's parameters, read from its modules without giving them memory."""

from __future__ import annotations

import torch

from benchmarks.contract import Model


def parameter_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Single-device name -> shape of every distinct parameter of `model`, in order; tied ones under their first name."""
    with torch.device("meta"):
        units = {unit: model.build(unit) for unit in model.units}
    shapes = {f"{unit}.{name}": tuple(p.shape) for unit, module in units.items() for name, p in module.named_parameters()}
    return {name: shape for name, shape in shapes.items() if name not in model.tied}
