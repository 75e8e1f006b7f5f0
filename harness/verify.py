"""Holds an engine against the single-device reference: the part that runs where the engine runs, on each rank.

Each rank leaves a *finding*, plain data; `harness.verdict` judges the findings of all ranks together.

Losses and gradient norms alone are blind: the gradient of one norm weight times 1.1 moves the loss by 1e-7 and the norm by
4e-5. So every parameter's whole update is compared, from the engine's own weights before the first step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import initialize, models
from benchmarks.cell import Cell
from benchmarks.contract import Engine, Model
from benchmarks.reference import reference_cell, stand_in, train, verification_model
from benchmarks.world import World
from harness.batches import Batches
from harness.settings import limit_memory, pin


def reference(payload: dict[str, Any]) -> dict[str, Any]:
    """Train the reference of a cell, or find it in the folder. Runs in a child of its own.

    Args:
        payload: `cell` as JSON; `device_bytes`, what the reference may use (0: unknown); `device`, `cpu` or `cuda`;
            `threads`; `folder`, where references are kept; `memory_bytes`, what may be asked for on the CPU (0: no limit).

    Returns:
        `cell`: id of the reference; `model`: as verified; `stand_in`: how that differs from the cell's own, in words;
        `mixes_rows`: whether its samples see each other; `parameters`: names; `parameters_file`; and the fields of
        `benchmarks.reference.Reference`.
    """
    limit_memory(payload["memory_bytes"])
    cell = Cell.model_validate(payload["cell"])
    model = verification_model(cell, payload["device_bytes"])
    single = reference_cell(cell.model_copy(update={"model": model}))
    kept = Path(payload["folder"]) / f"{single.id}.json"
    if not kept.exists():
        pin(threads=payload["threads"], seed=single.seed)
        file = kept.with_suffix(".parameters")
        steps = single.protocol.verify_steps
        device, memory = torch.device(payload["device"]), payload["device_bytes"]
        found = train(single, device, steps=steps, parameters_file=file, device_bytes=memory)
        answer = {
            "cell": single.id,
            "model": model,
            "mixes_rows": models.load(model).mixes_rows,
            "parameters": list(models.load(model).parameter_shapes),
            "parameters_file": str(file),
            **dataclasses.asdict(found),
        }
        half = kept.with_suffix(".new")
        half.write_text(json.dumps(answer))
        half.replace(kept)
    return {**json.loads(kept.read_text()), "stand_in": stand_in(cell.model, model)}


def verify(engine: Engine, cell: Cell, world: World, reference: dict[str, Any]) -> dict[str, Any]:
    """Train as many steps as the reference and compare what this rank can see.

    Args:
        engine: new, with the reference's optimizer and loss factor.
        cell: with the model as verified.
        reference: what `reference` returned.

    Returns:
        `losses` and `norms` by step (None: not on this rank, or skipped), `skipped` by step, `incomparable`: why the
        reference's step is another one, and by parameter name `parameters`: see `_compare`.
    """
    model = models.load(cell.model)
    start = [_before(model, name, tensor, cell.seed) for name, tensor in engine.parameters()]
    batches = Batches(cell, model, world)
    results = [engine.step(batches.take(), want_norm=True) for _ in reference["losses"]]
    wanted = torch.load(reference["parameters_file"], weights_only=True, mmap=True)
    parameters: dict[str, dict[str, Any]] = {}
    for (name, tensor), before in zip(engine.parameters(), start, strict=True):
        entry = _compare(name, tensor, wanted.get(name), before, model, cell, steps=len(results))
        parameters[name] = _worse(parameters[name], entry) if name in parameters else entry
    return {
        "losses": [None if r.loss is None else float(r.loss) for r in results],
        "norms": [None if r.norm is None else float(r.norm) for r in results],
        "skipped": [bool(r.skipped) for r in results],
        "incomparable": model.incomparable(cell),
        "parameters": parameters,
    }


def _worse(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of two copies of one parameter on this rank, the one that is further off; copies that differ are as far as can be."""
    if one["digest"] != other["digest"]:
        return {**one, "update_error": math.inf, "moved": math.inf}
    return max(one, other, key=lambda entry: entry["update_error"])


def digests(engine: Engine) -> dict[str, str]:
    """Parameter name -> hash of its bits, of all this rank can see; all ranks of a stage must call it together."""
    found: dict[str, str] = {}
    for name, tensor in engine.parameters():
        digest = _digest(tensor.detach())
        # Two copies on this rank that differ have no common hash, and so agree with nobody.
        found[name] = digest if found.get(name, digest) == digest else f"{found[name]}, {digest}"
    return found


def _before(model: Model, name: str, tensor: Tensor, seed: int) -> dict[str, Any]:
    """What must be known of a parameter before the first step. Keeps a copy only of one that is not what it should be."""
    value = _on_cpu(tensor)
    if name not in model.parameter_shapes:
        return {"error": math.inf, "limit": 0.0, "value": value}
    wanted = initialize.full(model, name, seed)
    if value.shape != wanted.shape:
        return {"error": math.inf, "limit": 0.0, "value": value}
    if torch.equal(value, wanted):
        return {"error": 0.0, "limit": 0.0, "value": None}
    return {"error": _ratio(value - wanted, wanted), "limit": torch.finfo(tensor.dtype).eps, "value": value.clone()}


def _compare(
    name: str, tensor: Tensor, wanted: Tensor | None, start: dict[str, Any], model: Model, cell: Cell, *, steps: int
) -> dict[str, Any]:
    """One parameter after the last step.

    Returns:
        `update_error`: max|dw - dw_ref| / max|dw_ref|, or in fp32 the error of the update's length along the reference's
            where that is larger, each beyond what the rounding of the weights themselves explains;
        `moved`: max|dw|, and `moved_reference`: max|dw_ref|; `start_error` and `start_limit`: of its value before the
        first step; `digest`: of its bits.
    """
    digest = _digest(tensor.detach())
    if wanted is None or tuple(tensor.shape) != tuple(wanted.shape) or math.isinf(start["error"]):
        unknown = {"update_error": math.inf, "moved": math.inf, "moved_reference": math.inf}
        return {**unknown, "start_error": math.inf, "start_limit": 0.0, "digest": digest}
    value, initial = _on_cpu(tensor), initialize.full(model, name, cell.seed)
    update_wanted = wanted - initial
    update = value - (initial if start["value"] is None else start["value"])
    # Each step rounds a weight to one of its neighbours, here and in the reference: one unit in the last place.
    rounding = steps * torch.finfo(torch.float32).eps * wanted.abs()
    errors = [_ratio(((update - update_wanted).abs() - rounding).clamp(min=0), update_wanted)]
    if cell.precision == "fp32":  # products in 16 bits have larger errors than the rounding of weights could hide
        errors.append(_length_error(update, update_wanted, rounding))
    return {
        "update_error": max(errors, key=_badness),
        "moved": update.abs().max().item(),
        "moved_reference": update_wanted.abs().max().item(),
        "start_error": start["error"],
        "start_limit": start["limit"],
        "digest": digest,
    }


def _length_error(update: Tensor, wanted: Tensor, rounding: Tensor) -> float:
    """|<update - wanted, wanted>| / <wanted, wanted>, beyond what rounding explains.

    A gradient times a constant moves all weights too far at once. Beside a weight of 1 that moves by 1e-5, rounding hides one
    percent of each, and not of all together: it is another one for each weight, so that it adds up as a root of squares.
    """
    along, weights = wanted.double(), rounding.double()
    off = torch.sum((update.double() - along) * along).abs().item()
    explained = torch.linalg.vector_norm(weights * along).item()
    whole = along.square().sum().item()
    return 0.0 if off <= explained else (off - explained) / whole


def _badness(error: float) -> tuple[bool, float]:
    """Orders errors; NaN is the worst."""
    return math.isnan(error), error


def _ratio(difference: Tensor, wanted: Tensor) -> float:
    """max|difference| / max|wanted|: 0 where both are 0, infinite where only `wanted` is, NaN where one holds a NaN."""
    above, below = difference.abs().max().item(), wanted.abs().max().item()
    if below == 0:
        return 0.0 if above == 0 else above * math.inf
    return above / below


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32)


def _digest(tensor: Tensor) -> str:
    content = tensor.to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.data).hexdigest()[:16]
