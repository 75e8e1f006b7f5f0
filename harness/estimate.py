"""About how long a cell takes, before any has run: an order of magnitude, for `harness.budget.Pace` to correct."""

from __future__ import annotations

from benchmarks.cell import Cell
from benchmarks.site import Site

VERIFY_SECONDS, MEASURE_SECONDS = 1.0, 2.0
"""What verification (with its share of a reference) and measurement take beside their steps, as seen on two cores."""
STEP_SECONDS = 0.02
"""What a step takes beside its arithmetic."""
WARMUP_STEPS = 15
"""After how many steps warm-up usually ends."""
FLOPS_PER_SECOND = {"cpu": {"fp32": 2e10, "16 bit": 1e10}, "cuda": {"fp32": 3e13, "16 bit": 1e14}}
"""What one core or GPU is taken to reach."""
COMPILE_SECONDS = 20.0
"""What torch.compile takes for one program, in verification and again in measurement."""
WEIGHTS_PER_SECOND = 1e8
"""Initial weights that one process makes on the CPU."""


def seconds(cell: Cell, *, flops: int, parameters: int, verified_parameters: int, site: Site, fits: bool = True) -> float:
    """Verification and measurement of one legal cell.

    Args:
        flops: of forward and backward of its global batch.
        parameters: of its model.
        verified_parameters: of the model that is verified, a shallow one where the whole does not fit one device.
        fits: whether it is expected to get further than its first step.
    """
    protocol = cell.protocol
    # Processes that share cores wait for each other.
    crowd = max(1.0, cell.processes / site.count) if site.kind == "cpu" else 1.0
    rate = FLOPS_PER_SECOND[site.kind]["fp32" if cell.precision == "fp32" else "16 bit"]
    recomputed = 1.0 if cell.checkpointing in ("none", "selective") else 4 / 3
    step = STEP_SECONDS * crowd + recomputed * flops / (rate * max(1, min(cell.devices, site.count)))
    weight = crowd / cell.layout.degree("pp") / WEIGHTS_PER_SECOND
    shallow = verified_parameters / parameters
    total = VERIFY_SECONDS + verified_parameters * weight + 2 * protocol.verify_steps * step * shallow
    if cell.compile != "none":
        total += COMPILE_SECONDS * crowd * (2 if protocol.measure_steps else 1)
    if protocol.measure_steps and not fits:
        total += parameters * weight
    elif protocol.measure_steps:
        warmup = min(protocol.warmup_steps, WARMUP_STEPS) * step
        total += MEASURE_SECONDS + parameters * weight + warmup + max(protocol.measure_seconds, protocol.measure_steps * step)
    return total
