"""How much memory a cell will need on its fullest device, estimated without building it.

    parameters       elements / what cuts them, in the precision's dtype, and what is gathered whole for a while
    gradients        the same, as the data axis holds them (`contract.Shares`)
    optimizer_state  two numbers for each parameter with AdamW, none with SGD, and master copies
    activations      of one microbatch, times the microbatches whose activations the stage holds at once

Elements are counted as a `Placement` would place them: a unit lies on one stage, the tensor plan cuts a weight, the data
axis shares what is left. The activations of a unit are, for each of its weight matrices and each position, inputs and
outputs: backward keeps the input of a product and what an element-wise operation makes of its output, in the compute
dtype. Beside them stand norms and the fp32 residual stream, and in mixed precision 16-bit copies of the weights:

    a block = positions x (sum of inputs and outputs x bytes of the compute dtype + 4 x its output x 4) [+ 2 bytes a weight]

Checkpointing keeps the output of each block, and all of this for one block only. The output layer adds its logits in
fp32 and, of one microbatch, their softmax and gradient. Not counted are the allocator's fragments, workspaces of
kernels, and contexts, on a GPU about a gibibyte. Tests hold it against measured cells.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import DataParallel, Model, PipelineParallel, Shares
from benchmarks.stages import spread
from benchmarks.strategies import strategies
from benchmarks.techniques.precision import PRECISIONS

STATE_OF_OPTIMIZER = {"adamw": 2, "sgd": 0}
"""Numbers that the optimizer keeps for each parameter."""
CUT_DIMENSION = {"column": 0, "row": 1, "vocabulary": 0, "head": 0}
"""Style of the tensor plan -> the dimension of the weight that is cut."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on one device, by purpose, as `memory_<purpose>_bytes` of a record."""

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer_state + self.activations


class _Weight(NamedTuple):
    """One parameter of a unit as a tensor parallel rank holds it."""

    shape: tuple[int, ...]
    elements: int
    """0 where another unit of the stage holds them."""
    shares_input: bool
    """Whether another weight of the unit multiplies the same input, as those of query, key and value do."""

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1


def footprint(cell: Cell) -> Footprint:
    """The estimate for the device that needs most.

    Raises:
        ImportError: a strategy's framework is not installed.
    """
    model = models.load(cell.model)
    found = strategies(cell.layout)
    pipeline, data = found.get("pp"), found.get("dp")
    traits = frozenset().union(*(s.traits(cell, model) for axis, s in found.items() if axis != "dp"))
    shares = data.shares(cell, traits) if isinstance(data, DataParallel) else Shares()
    if not isinstance(pipeline, PipelineParallel):
        return _device([_stage(cell, model, model.units, shares, 1)])
    units = spread(pipeline, model, cell)
    devices = [
        [_stage(cell, model, units[stage], shares, pipeline.in_flight(cell, model, stage)) for stage in held]
        for held in pipeline.placement(cell)
    ]
    return max(map(_device, devices), key=lambda f: f.total)


class _Stage(NamedTuple):
    """Bytes of one stage, by purpose."""

    parameters: float
    gradients: float
    optimizer_state: float
    kept: int
    """Activations of microbatches in flight."""
    working: int
    """Activations that a stage has only while it works."""


def _device(stages: Sequence[_Stage]) -> Footprint:
    """What the stages of one device hold together; one of them works at a time."""
    return Footprint(
        parameters=round(sum(s.parameters for s in stages)),
        gradients=round(sum(s.gradients for s in stages)),
        optimizer_state=round(sum(s.optimizer_state for s in stages)),
        activations=sum(s.kept for s in stages) + max(s.working for s in stages),
    )


def _stage(cell: Cell, model: Model, units: Sequence[str], shares: Shares, in_flight: int) -> _Stage:
    precision = PRECISIONS[cell.precision]
    size, compute = precision.parameters.itemsize, precision.compute.itemsize
    weights = {unit: list(_weights(model, unit, cell.layout.degree("tp"), units)) for unit in units}
    counts = {unit: sum(w.elements for w in found) for unit, found in weights.items()}
    count = sum(counts.values())
    blocks = sorted((counts[unit] for unit in units if unit in model.blocks), reverse=True)
    gathered = 0
    if shares.gathered != "nothing":
        whole = sum(blocks) if shares.gathered == "all" else sum(blocks[:2])
        gathered = whole * compute + (count - sum(blocks)) * size
    state = STATE_OF_OPTIMIZER[cell.optimizer.name] * shares.optimizer_state * precision.optimizer_state.itemsize
    kept, working = _activations(cell, model, units, weights, shares, in_flight)
    return _Stage(
        parameters=count * size * shares.parameters + gathered,
        gradients=count * size * shares.gradients,
        optimizer_state=count * (state + 4 * shares.master),
        kept=kept,
        working=working,
    )


def _activations(
    cell: Cell, model: Model, units: Sequence[str], weights: dict[str, list[_Weight]], shares: Shares, in_flight: int
) -> tuple[int, int]:
    """What is kept of the microbatches in flight, and what there is besides while the stage works on one."""
    rows, sequence = cell.rows_per_microbatch(), cell.batch.sequence
    compute = PRECISIONS[cell.precision].compute.itemsize
    kept = inside_block = head = logits = 0
    for unit in units:
        shape = model.boundary(unit, rows, sequence)
        output = 4 * math.prod(shape)
        if not model.forward_flops(unit, 1, 1, causal=True):
            kept += output  # a lookup keeps tokens
            continue
        is_block = unit in model.blocks
        inside = 4 * output if is_block else 0
        for weight in weights[unit]:
            if weight.is_matrix:
                widths = weight.shape[0] + (0 if weight.shares_input else weight.shape[1])
                inside += compute * _positions(shape, weight) * widths
                # Gathered blocks are in the compute dtype already.
                if compute < 4 and not (is_block and shares.gathered != "nothing"):
                    inside += compute * math.prod(weight.shape)
        if is_block and cell.checkpointing == "full":
            kept, inside_block = kept + output, max(inside_block, inside)
        elif is_block:
            kept += inside
        elif unit == model.units[-1]:
            head, logits = inside + output, 2 * output
        else:
            kept += inside + output
    # The output layer's own are gone when the first block is run again.
    return in_flight * kept + max(0, in_flight - 1) * head, max(inside_block, head + logits)


def _positions(output: tuple[int, ...], weight: _Weight) -> int:
    """To how many places of a unit's output a weight is applied: all but the channels of an image (rows, channels, height,
    width), or but the last dimension."""
    channels = output[1] if len(weight.shape) == 4 else output[-1]
    return math.prod(output) // channels


def _weights(model: Model, unit: str, tensor: int, held: Sequence[str]) -> Iterator[_Weight]:
    """The parameters of one unit, cut `tensor` ways; of tied ones in the same stage only the first counts."""
    shapes = {**model.parameter_shapes, **{copy: model.parameter_shapes[owner] for copy, owner in model.tied.items()}}
    regions = set()
    for name, shape in shapes.items():
        if name.partition(".")[0] != unit:
            continue
        module = name.rpartition(".")[0]
        style = _style(model, module)
        dimension = CUT_DIMENSION.get(style or "", len(shape))
        if dimension < len(shape) and shape[dimension] % tensor == 0:
            shape = tuple(n // tensor if i == dimension else n for i, n in enumerate(shape))
        owner = model.tied.get(name)
        elsewhere = owner is not None and owner.partition(".")[0] in held
        # Columns of one region are parts of one wide product.
        region = module.rpartition(".")[0] if style == "column" and len(shape) > 1 else None
        yield _Weight(shape, 0 if elsewhere else math.prod(shape), region in regions)
        regions |= {region} - {None}


def _style(model: Model, module: str) -> str | None:
    return next((p.style for p in model.tensor_plan if p.style != "region" and fnmatch.fnmatchcase(module, p.pattern)), None)
