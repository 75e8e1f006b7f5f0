"""The single-device run that every cell is held against, written without the layouts: it shares model and data alone

One device, one plain SGD loop. SGD, as AdamW hides a wrong scale of the gradients and blows up where a true gradient is
zero. The loss is multiplied by a factor that brings the gradient norm to 6 or more, so that a framework which clips
unasked, at 1.0, is seen.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import initialize, models
from benchmarks.cell import Batch, Cell, Optimizer, Protocol
from benchmarks.contract import Model
from benchmarks.data import Text

VERIFICATION_LOSS_SCALE = 2.0**12
"""Loss factor x initial loss scale of 16-bit verification. How large a scale overflows depends on how the batch is cut, as a
part's mean loss has larger gradients than the whole's; this one is far from the edge, so all skip the same steps: none."""
LEAST_GRADIENT_NORM = 6.0
CHUNK_TOKENS = 16384
"""A step's gradient is added up over pieces of at most so many tokens (or one row)."""
COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the single-device run gave. Its final parameters are in a file."""

    losses: list[float]
    """Mean loss of each step's batch, in nats, without the factor."""
    gradient_norms: list[float | None]
    """Global norm of each step's gradient before clipping, with the factor; None where the step was skipped."""
    skipped: list[bool]
    """Whether loss scaling skipped the step."""
    loss_factor: float
    """A power of two by which the loss was multiplied before backward."""


def verification_optimizer(clip: float) -> Optimizer:
    """What reference and layouts are verified with: plain SGD. Where gradients are clipped it takes
    longer steps to make up for it, as an update that drowns in the rounding of its weight cannot be compared."""
    return Optimizer(name="sgd", learning_rate=max(0.1, 0.5 / clip) if clip else 0.1, weight_decay=0.0)


def reference_cell(cell: Cell) -> Cell:
    """The single-device cell that `cell` is held against; equal for all cells that may share its run.

    Its model is the whole one; `verification_model` may replace it.
    """
    return Cell(
        model=cell.model,
        precision=cell.precision,
        clip=cell.clip,
        batch=Batch(global_size=cell.batch.global_size, sequence=cell.batch.sequence),
        optimizer=verification_optimizer(cell.clip),
        seed=cell.seed,
        data=cell.data,
        protocol=Protocol(verify_steps=cell.protocol.verify_steps),
    )


def verification_model(cell: Cell, device_bytes: int) -> str:
    """The model to verify `cell` with: its own if the reference fits one device, else the same widths with fewer blocks.

    Args:
        device_bytes: what the reference may use; 0: unknown, taken to be enough.
    """
    model = models.load(cell.model)
    if not device_bytes or reference_bytes(model, cell.batch) <= device_bytes:
        return cell.model
    fewest = min(len(model.blocks), max(2, cell.layout.degree("pp")))
    return models.with_options(cell.model, blocks=fewest)


def reference_bytes(model: Model, batch: Batch) -> int:
    """A cautious estimate of what the reference of `model` needs at its peak."""
    rows = min(batch.global_size, _chunk_rows(batch.sequence))
    # What backward keeps of a matrix product is its input and what follows from its output: in fp32 or as two 16-bit
    # copies, once as it is and once after the element-wise operation beside it.
    per_token = sum(8 * sum(s) for n, s in model.parameter_shapes.items() if len(s) == 2 and n.startswith(model.blocks))
    # Logits in the compute dtype and in fp32, their softmax and their gradient.
    logits = math.prod(model.boundary(model.units[-1], rows, batch.sequence))
    # Weight, gradient, a 16-bit copy of each, and as much again for what the allocator cannot use.
    return 16 * model.parameter_count() + rows * batch.sequence * per_token + 16 * logits


def train(
    cell: Cell, device: torch.device, *, steps: int, parameters_file: Path, loss_factor: float | None = None
) -> Reference:
    """Train `cell.model` on one device from the seeded weights, on the same batches as every layout.

    Args:
        cell: only its model, batch, precision, clip, seed and data are looked at.
        parameters_file: gets {single-device name: fp32 tensor on the CPU} after the last step, to be read with
            `torch.load(parameters_file, weights_only=True, mmap=True)`.
        loss_factor: by which the loss is multiplied; None: the smallest power of two, 1 or more, for which the first
            gradient's norm is at least `LEAST_GRADIENT_NORM`.

    Raises:
        RuntimeError: the first gradient is zero or not finite, so that no factor helps.
    """
    model = models.load(cell.model)
    module = _whole(model, cell.seed).to(device)
    parameters = dict(module.named_parameters())
    text = Text(cell.data, cell.seed)
    vocabulary = model.boundary(model.units[-1], 1, 1)[-1]
    if loss_factor is None:
        first = text.batch(0, cell.batch.global_size, cell.batch.sequence, vocabulary)
        loss_factor = _loss_factor(model, module, first, cell.precision, device)
    optimizer = torch.optim.SGD(parameters.values(), lr=verification_optimizer(cell.clip).learning_rate)
    scaler = torch.amp.GradScaler(device.type, VERIFICATION_LOSS_SCALE / loss_factor, enabled=cell.precision == "fp16")

    losses, norms, skipped = [], [], []
    for step in range(steps):
        batch = text.batch(step, cell.batch.global_size, cell.batch.sequence, vocabulary)
        scale = scaler.get_scale()
        optimizer.zero_grad()
        losses.append(_accumulate(model, module, batch, cell.precision, device, factor=loss_factor, scaler=scaler))
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters.values(), cell.clip or math.inf)
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < scale)
        norms.append(None if skipped[-1] else norm.item())

    torch.save({name: parameter.detach().cpu() for name, parameter in parameters.items()}, parameters_file)
    return Reference(losses=losses, gradient_norms=norms, skipped=skipped, loss_factor=loss_factor)


def _whole(model: Model, seed: int) -> nn.Sequential:
    """The whole model with its initial weights, on the CPU."""
    with torch.device("meta"):
        module = nn.Sequential(OrderedDict((unit, model.build(unit)) for unit in model.units))
    values = {name: nn.Parameter(initialize.full(model, name, seed)) for name in model.parameter_shapes}
    for name in [name for name, _ in module.named_parameters()]:
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, values[model.tied.get(name, name)])
    return module


def _chunk_rows(sequence: int) -> int:
    return max(1, CHUNK_TOKENS // sequence)


def _accumulate(
    model: Model,
    module: nn.Module,
    batch: tuple[Tensor, Tensor],
    precision: str,
    device: torch.device,
    *,
    factor: float,
    scaler: torch.amp.GradScaler,
) -> float:
    """Add the gradient of factor x mean loss of `batch` to the parameters'. Returns the mean loss without the factor."""
    rows, sequence = batch[0].shape
    pieces = zip(*(tensor.to(device).split(_chunk_rows(sequence)) for tensor in batch), strict=True)
    total = torch.zeros((), device=device)
    for inputs, targets in pieces:
        with torch.autocast(device.type, dtype=COMPUTE[precision], enabled=precision != "fp32"):
            output = module(inputs)
        loss = model.loss(output, targets) * (inputs.size(0) / rows)
        scaler.scale(loss * factor).backward()
        total += loss.detach()
    return total.item()


def _loss_factor(model: Model, module: nn.Module, batch: tuple[Tensor, Tensor], precision: str, device: torch.device) -> float:
    unscaled = torch.amp.GradScaler(device.type, enabled=False)
    _accumulate(model, module, batch, precision, device, factor=1.0, scaler=unscaled)
    norm = nn.utils.get_total_norm([p.grad for p in module.parameters()]).item()
    if not 0 < norm < math.inf:
        raise RuntimeError(f"the first gradient of {model.name} has the norm {norm}: it must be above 0 and finite")
    return 2.0 ** max(0, math.ceil(math.log2(LEAST_GRADIENT_NORM / norm)))
