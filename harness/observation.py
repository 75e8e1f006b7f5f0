"""What all ranks saw of one step, put together, and held against what the cell asked for. Imports no torch.

A technique that changed nothing fails the cell: its figure would be another technique's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.cell import Cell, recomputes
from harness.record import Observed

PRECISION_DTYPES = {
    "fp32": {"parameters": "fp32", "compute": "fp32", "gradients": "fp32", "reduction": "fp32", "optimizer_state": "fp32"},
    "bf16": {"parameters": "fp32", "compute": "bf16", "gradients": "fp32", "reduction": "fp32", "optimizer_state": "fp32"},
    "fp16": {"parameters": "fp32", "compute": "fp16", "gradients": "fp32", "reduction": "fp32", "optimizer_state": "fp32"},
    "fp8": {"parameters": "fp32", "compute": "bf16+fp8", "gradients": "fp32", "reduction": "fp32", "optimizer_state": "fp32"},
}
"""What a precision's name means, in every framework."""
OFFLOADED = {"optimizer": ("optimizer_state",), "parameters": ("parameters", "gradients", "optimizer_state")}
"""What an offload keeps on the host."""


def merge(findings: Sequence[dict[str, Any]], *, knobs: dict[str, Any], data: dict[str, Any]) -> Observed:
    """The observed facts of a cell.

    Args:
        findings: by rank, what `harness.observe.Observer.finding` gave, with `coordinates`: axis -> position.
    """
    dtypes, devices = (_together(findings, what) for what in ("dtypes", "devices"))
    replica_findings = [f for f in findings if f["coordinates"]["dp"] == f["coordinates"]["tp"] == 0]
    replica = [part for finding in replica_findings for part in finding["parts"]]
    repeated = [calls - part["forwards"] for part in replica for calls in part["blocks"].values()]
    return Observed(
        dtypes=dtypes,
        devices=devices,
        learning_rates=sorted({rate for f in findings for rate in f["learning_rates"]}),
        checkpointed_blocks=sum(n > 0 for n in repeated),
        recomputed_forwards=sum(repeated),
        recomputed_products=sum(f["recomputed_products"] for f in replica_findings),
        offloaded_bytes=max(f["offloaded_bytes"] for f in findings),
        compiled_graphs=min(f["compiled_graphs"] for f in findings),
        microbatches=max(part["forwards"] for part in replica),
        stages=[part["units"] for part in sorted(replica, key=lambda p: p["index"])],
        collectives=findings[0]["collectives"],
        attention_backend=next((f["attention_backend"] for f in findings if f["attention_backend"]), None),
        knobs=knobs,
        data=data,
    )


def _together(findings: Sequence[dict[str, Any]], what: str) -> dict[str, str]:
    """Subject -> the names that any rank saw of it, joined by `+`."""
    seen: dict[str, set[str]] = {}
    for finding in findings:
        for subject, names in finding[what].items():
            seen.setdefault(subject, set()).update(names)
    return {subject: "+".join(sorted(names)) for subject, names in seen.items() if names}


def problem(
    observed: Observed,
    findings: Sequence[dict[str, Any]],
    cell: Cell,
    changed_dtypes: Mapping[str, str] = MappingProxyType({}),
    repeats: int = 0,
) -> str | None:
    """What the cell asked for and was not seen, in one sentence; None if all was.

    Args:
        changed_dtypes: subject -> name, where a knob of the layout changes what the precision means.
        repeats: of how many microbatches the layout runs every block again, by a checkpointing of its own.
    """
    for subject, wanted in {**PRECISION_DTYPES[cell.precision], **changed_dtypes}.items():
        seen = observed.dtypes.get(subject)
        if subject == "reduction" and cell.layout.degree("dp") == 1:
            continue
        if seen != wanted:
            what = f"{subject.replace('_', ' ')} in {seen}" if seen else f"no {subject.replace('_', ' ')} at all"
            return f"{cell.precision} was asked for, and {what} was observed where {wanted} is meant"
    rate = cell.optimizer.rate(cell.batch.global_size)
    if observed.learning_rates != [rate]:
        return f"a learning rate of {rate:g} was asked for, and {observed.learning_rates} was observed"
    for subject in OFFLOADED.get(cell.offload, ()):
        if (where := observed.devices.get(subject)) != "cpu":
            return f"offload {cell.offload} was asked for, and {subject.replace('_', ' ')} on {where} observed"
    wanted = cell.batch.microbatches
    for rank, finding in enumerate(findings):
        for part in finding["parts"]:
            seen = part["forwards"]
            if seen != wanted:
                what = f"{seen} forwards of stage {part['index']} observed on rank {rank}"
                return f"{wanted} microbatches were asked for, and {what}"
    return _checkpointing_problem(observed, findings, cell, repeats) or _placing_problem(findings, cell)


def _checkpointing_problem(observed: Observed, findings: Sequence[dict[str, Any]], cell: Cell, repeats: int) -> str | None:
    """Which blocks were not recomputed as asked for."""
    parts = {part["index"]: part for finding in findings for part in finding["parts"]}
    order = [block for _, part in sorted(parts.items()) for block in part["blocks"]]
    asked = f"checkpointing {cell.checkpointing} was asked for, and"
    for rank, finding in enumerate(findings):
        for part in finding["parts"]:
            for block, calls in part["blocks"].items():
                repeated = calls - part["forwards"]
                meant = cell.batch.microbatches if recomputes(cell.checkpointing, order.index(block)) else repeats
                # Input and weight gradients that are computed apart each begin with what checkpointing kept.
                most = 2 * meant if finding["splits_backward"] else meant
                if not meant <= repeated <= most:
                    many = f"{meant}{f' to {most}' if most > meant else ''}"
                    what = f"{repeated} recomputed forwards of {block} observed on rank {rank} where {many} are meant"
                    return f"{asked} {what}"
    if observed.recomputed_forwards and (observed.recomputed_products == 0) != (cell.checkpointing == "selective"):
        meant = "none is" if cell.checkpointing == "selective" else "some are"
        return f"{asked} {observed.recomputed_products} recomputed matrix products observed where {meant} meant"
    return None


def _placing_problem(findings: Sequence[dict[str, Any]], cell: Cell) -> str | None:
    """Which rank did not offload or compile what was asked for; ranks that hold no block have nothing to do so with."""
    for rank, finding in enumerate(findings):
        blocks = any(part["blocks"] for part in finding["parts"])
        if blocks and (finding["offloaded_bytes"] > 0) != (cell.offload == "activations"):
            what = f"{finding['offloaded_bytes']} bytes of activations sent to the host observed on rank {rank}"
            return f"offload {cell.offload} was asked for, and {what}"
        if (blocks or cell.compile == "model") and (finding["compiled_graphs"] > 0) != (cell.compile != "none"):
            return f"compile {cell.compile} was asked for, and {finding['compiled_graphs']} programs observed on rank {rank}"
    return None
