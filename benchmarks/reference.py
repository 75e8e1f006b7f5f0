"""The single-device run that every cell is held against, written without the layouts: it shares model and data alone.

One device, one plain SGD loop. SGD, as AdamW hides a wrong scale of the gradients and blows up where a true gradient is
zero. The loss is multiplied by a factor that brings the gradient norm to 4 or more, so that a framework which clips
unasked, at 1.0, is seen.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import initialize, models
from benchmarks.cell import Batch, Cell, Optimizer, Protocol
from benchmarks.contract import Model

VERIFICATION_LOSS_SCALE = 2.0**12
"""Loss factor x initial loss scale of 16-bit verification. How large a scale overflows depends on how the batch is cut, as a
part's mean loss has larger gradients than the whole's; this one is far from the edge, so all skip the same steps: none."""
LEAST_GRADIENT_NORM = 4.0
"""Of every step: a framework that clips at 1.0 without being asked then changes each of them."""
OPTIMIZER_STEPS = 8
"""How many steps with the cell's own optimizer are compared: enough for its moments to matter."""
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
    learning_rate: float
    """Of the plain SGD of this run, and of whatever is held against it."""
    optimizer_losses: list[float] = field(default_factory=list)
    """Of the first steps of another run, with the cell's own optimizer, to hold the timed engine against. None in fp16, where
    how the batch is cut decides which steps loss scaling skips."""


def sgd(learning_rate: float) -> Optimizer:
    """The optimizer that cells are verified with."""
    return Optimizer(name="sgd", learning_rate=learning_rate, weight_decay=0.0)


def reference_cell(cell: Cell) -> Cell:
    """The single-device cell that `cell` is held against; equal for all cells that may share its run.

    Its model is the whole one; `verification_model` may replace it.
    """
    return Cell(
        model=cell.model,
        precision=cell.precision,
        clip=cell.clip,
        batch=Batch(global_size=cell.batch.global_size, sequence=cell.batch.sequence),
        optimizer=cell.optimizer,
        seed=cell.seed,
        data=cell.data,
        protocol=Protocol(verify_steps=cell.protocol.verify_steps),
    )


def verification_model(cell: Cell, device_bytes: int) -> str:
    """The model to verify `cell` with: its own, or `smooth` where its gradient jumps, if the reference fits one device;
    else the same widths with fewer blocks. Those also stand in where samples see each other in 16 bits: every batch norm
    magnifies rounding, until in a deep model nothing can be compared.

    Args:
        device_bytes: what the reference may use; 0: unknown, taken to be enough.
    """
    name = smooth(cell.model)
    model = models.load(name)
    fits = not device_bytes or reference_bytes(model, cell.batch, _chunk_rows(model, cell.batch, device_bytes)) <= device_bytes
    if fits and not (model.mixes_rows and cell.precision != "fp32"):
        return name
    fewest = min(len(model.blocks), max(2, cell.layout.degree("pp")))
    whole = models.parse(name).dimensions
    changed = {option: value for option, value in model.shallow(fewest).items() if whole[option] != value}
    return models.with_options(name, **changed) if changed else name


def smooth(name: str) -> str:
    """The model whose step speaks for that of the model `name`; the same where its gradient does not jump."""
    options = models.load(name).smooth_options
    return models.with_options(name, **options) if options else name


def stand_in(name: str, verified: str) -> str:
    """In which ways the model `verified` differs from the model `name`: `shallow`, `smooth`, both, or none."""
    ways = {"shallow": verified != smooth(name), "smooth": smooth(name) != name}
    return ", ".join(way for way, differs in ways.items() if differs)


def reference_bytes(model: Model, batch: Batch, rows: int) -> int:
    """A cautious estimate of what the reference of `model` needs at its peak, in pieces of so many rows."""
    # Logits in the compute dtype and in fp32, their softmax and their gradient.
    logits = math.prod(model.boundary(model.units[-1], rows, batch.sequence))
    # Weight, gradient, a 16-bit copy of each, and as much again for what the allocator cannot use.
    return 16 * model.parameter_count() + model.activation_bytes(rows, batch.sequence) + 16 * logits


def train(cell: Cell, device: torch.device, *, steps: int, parameters_file: Path, device_bytes: int = 0) -> Reference:
    """Train `cell.model` on one device from the seeded weights, on the same batches as every layout.

    The loss is multiplied by the smallest power of two with which every step's gradient norm is at least
    `LEAST_GRADIENT_NORM`; the learning rate undoes it, so that all factors give the same steps.

    Args:
        cell: only its model, batch, precision, clip, optimizer, seed and data are looked at.
        parameters_file: gets {single-device name: fp32 tensor on the CPU} after the last step, to be read with
            `torch.load(parameters_file, weights_only=True, mmap=True)`.
        device_bytes: what may be used; 0: unknown, taken to be enough.

    Raises:
        RuntimeError: a gradient is zero or not finite, so that no factor helps.
    """
    factor = 1.0
    rows = _chunk_rows(models.load(cell.model), cell.batch, device_bytes)
    while True:
        reference, parameters = _attempt(cell, device, steps, factor, rows)
        least = min((norm for norm in reference.gradient_norms if norm is not None), default=math.inf)
        if not 0 < least <= math.inf:
            raise RuntimeError(f"a gradient of {cell.model} has the norm {least}: it must be above 0 and finite")
        if least >= LEAST_GRADIENT_NORM:
            torch.save({name: parameter.detach().cpu() for name, parameter in parameters.items()}, parameters_file)
            del parameters
            return replace(reference, optimizer_losses=_optimizer_losses(cell, device, rows))
        factor = 2.0 ** math.ceil(math.log2(factor * LEAST_GRADIENT_NORM / least))


def _optimizer_losses(cell: Cell, device: torch.device, rows: int) -> list[float]:
    """The losses of the first steps with the cell's own optimizer."""
    if cell.precision == "fp16":
        return []
    model = models.load(cell.model)
    module = _whole(model, cell.seed).to(device)
    parameters = list(module.parameters())
    samples, settings = model.samples(cell), cell.optimizer
    rate = settings.rate(cell.batch.global_size)
    if settings.name == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=rate, weight_decay=settings.weight_decay)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=rate, betas=settings.betas, weight_decay=settings.weight_decay)
    unscaled = torch.amp.GradScaler(device.type, enabled=False)
    losses = []
    for step in range(OPTIMIZER_STEPS):
        batch = samples.batch(step, cell.batch.global_size)
        losses.append(_accumulate(model, module, batch, rows, cell.precision, device, factor=1.0, scaler=unscaled))
        _clip(parameters, cell.clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _attempt(
    cell: Cell, device: torch.device, steps: int, factor: float, rows: int
) -> tuple[Reference, dict[str, nn.Parameter]]:
    """The run with one factor, and the parameters after it."""
    model = models.load(cell.model)
    module = _whole(model, cell.seed).to(device)
    parameters = dict(module.named_parameters())
    samples = model.samples(cell)
    optimizer = torch.optim.SGD(parameters.values())
    scaler = torch.amp.GradScaler(device.type, VERIFICATION_LOSS_SCALE / factor, enabled=cell.precision == "fp16")
    clip = cell.clip or math.inf

    losses, norms, skipped, learning_rate = [], [], [], None
    for step in range(steps):
        batch = samples.batch(step, cell.batch.global_size)
        scale = scaler.get_scale()
        optimizer.zero_grad()
        losses.append(_accumulate(model, module, batch, rows, cell.precision, device, factor=factor, scaler=scaler))
        scaler.unscale_(optimizer)
        norm = _clip(parameters.values(), clip)
        if learning_rate is None and 0 < norm < math.inf:
            learning_rate = model.step_length / min(clip, norm)
            optimizer.param_groups[0]["lr"] = learning_rate
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < scale)
        norms.append(None if skipped[-1] else norm)
    reference = Reference(
        losses=losses, gradient_norms=norms, skipped=skipped, loss_factor=factor, learning_rate=learning_rate or 1.0
    )
    return reference, parameters


def _clip(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Shorten the gradients together to a global norm of at most `limit`. Returns the norm before that.

    It is summed in fp64: torch's own fp32 sum over many elements on a CPU was seen off by 4e-3.
    """
    gradients = [p.grad for p in parameters]
    norm = math.hypot(*(torch.linalg.vector_norm(g, dtype=torch.float64).item() for g in gradients))
    if norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm


def _whole(model: Model, seed: int) -> nn.Sequential:
    """The whole model with its initial weights, on the CPU."""
    with torch.device("meta"):
        module = nn.Sequential(OrderedDict((unit, model.build(unit)) for unit in model.units))
    values = {name: nn.Parameter(initialize.full(model, name, seed)) for name in model.parameter_shapes}
    for name in [name for name, _ in module.named_parameters()]:
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, values[model.tied.get(name, name)])
    return module


def _chunk_rows(model: Model, batch: Batch, device_bytes: int) -> int:
    """Into pieces of how many rows a step's batch is cut, so that it fits where it can."""
    if model.mixes_rows:
        return batch.global_size
    rows = max(1, CHUNK_TOKENS // (1 if model.longest_sequence is None else batch.sequence))
    rows = min(rows, batch.global_size)
    while rows > 1 and device_bytes and reference_bytes(model, batch, rows) > device_bytes:
        rows //= 2
    return rows


def _accumulate(
    model: Model,
    module: nn.Module,
    batch: tuple[Tensor, Tensor],
    rows: int,
    precision: str,
    device: torch.device,
    *,
    factor: float,
    scaler: torch.amp.GradScaler,
) -> float:
    """Add the gradient of factor x mean loss of `batch`, in pieces of so many rows, to the parameters'. Returns the mean
    loss without the factor."""
    pieces = zip(*(tensor.to(device).split(rows) for tensor in batch), strict=True)
    total = torch.zeros((), device=device)
    for inputs, targets in pieces:
        with torch.autocast(device.type, dtype=COMPUTE[precision], enabled=precision != "fp32"):
            output = module(inputs)
        loss = model.loss(output, targets) * (inputs.size(0) / batch[0].size(0))
        scaler.scale(loss * factor).backward()
        total += loss.detach()
    return total.item()
