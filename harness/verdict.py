"""Judges the findings of all ranks against the reference: verified, or why not in a sentence. Imports no torch.

Every comparison is written so that a NaN fails it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from harness.record import Verdict, Verification

POLICY = Path(__file__).parent.parent / "configs" / "policy.yaml"


@cache
def tolerances(*, mixes_rows: bool) -> dict[str, dict[str, float]]:
    """Precision -> `loss`, `gradient_norm`, `update`: the largest relative errors that pass; `noise`: see the file.

    Args:
        mixes_rows: whether the model's samples see each other.
    """
    return yaml.safe_load(POLICY.read_text())["tolerance_of_mixed_rows" if mixes_rows else "tolerance"]


def judge(findings: Sequence[dict[str, Any]], reference: dict[str, Any], *, precision: str) -> Verification:
    """The verification of a cell.

    Args:
        findings: what `harness.verify.verify` returned on each rank.
        reference: what `harness.verify.reference` returned.
    """
    tolerance = tolerances(mixes_rows=reference["mixes_rows"])[precision]
    losses = [_mean(f["losses"][i] for f in findings) for i in range(len(reference["losses"]))]
    loss_error = _worst(_relative(a, b) for a, b in zip(losses, reference["losses"], strict=True))
    norm_error = _worst(
        _relative(norm, wanted)
        for finding in findings
        for norm, wanted in zip(finding["norms"], reference["gradient_norms"], strict=True)
        if wanted is not None
    )
    floor = _noise_floor(findings, tolerance["noise"])
    seen = [(_update_error(entry, floor), name) for f in findings for name, entry in f["parameters"].items()]
    update_error, worst = max(seen, key=lambda pair: (math.isnan(pair[0]), pair[0]), default=(math.inf, None))

    problems = []
    incomparable = findings[0]["incomparable"]
    if incomparable:  # another function than the reference's: what still holds is that it trains, from the same weights
        problems += [f"the loss is {loss}" for loss in losses if not math.isfinite(loss)][:1]
    else:
        if not loss_error <= tolerance["loss"]:
            problems.append(f"the loss is off by {loss_error:.2g}, more than {tolerance['loss']:.2g}")
        if not norm_error <= tolerance["gradient_norm"]:
            problems.append(f"the gradient norm is off by {norm_error:.2g}, more than {tolerance['gradient_norm']:.2g}")
        if not update_error <= tolerance["update"]:
            problems.append(f"the update of {worst} is off by {update_error:.2g}, more than {tolerance['update']:.2g}")
        problems += filter(None, (_skips(findings, reference),))
    copies = disagreement([_digests(f) for f in findings])
    problems += filter(None, (_start(findings), _names(findings, reference), copies))
    return Verification(
        reference=reference["cell"],
        model=reference["model"],
        losses=_finite(losses),
        reference_losses=reference["losses"],
        gradient_norms=[_number(norm) for norm in findings[0]["norms"]],
        reference_gradient_norms=reference["gradient_norms"],
        max_relative_loss_error=_number(loss_error),
        max_relative_gradient_norm_error=_number(norm_error),
        max_update_error=_number(update_error),
        worst_parameter=worst,
        tolerance=tolerance,
        verdict="failed" if problems else "not comparable" if incomparable else _passed(reference["stand_in"]),
        why="; ".join(problems) or incomparable,
    )


def _passed(stand_in: str) -> Verdict:
    return f"passed ({stand_in})" if stand_in else "passed"  # type: ignore[return-value]


def unmoved(findings: Sequence[dict[str, Any]], reference: dict[str, Any], *, precision: str) -> list[str]:
    """Parameters that the reference moved by no more than noise, so that nothing else is known of their gradient."""
    floor = _noise_floor(findings, tolerances(mixes_rows=reference["mixes_rows"])[precision]["noise"])
    return sorted({name for f in findings for name, entry in f["parameters"].items() if entry["moved_reference"] <= floor})


def strayed(losses: Sequence[Sequence[float | None]], reference: dict[str, Any], *, precision: str) -> str | None:
    """Where the losses of the timed engine's first steps leave those of a single device with the same optimizer, in a
    sentence; None if they do not.

    Args:
        losses: rank -> step -> loss; None where the rank has none.
        reference: its `optimizer_losses`, by step; where they are more than the engine's, the first ones count.
    """
    limit = tolerances(mixes_rows=reference["mixes_rows"])[precision]["optimizer_loss"]
    means = map(_mean, zip(*losses, strict=True))
    for step, (value, wanted) in enumerate(zip(means, reference["optimizer_losses"], strict=False)):
        error = _relative(value, wanted)
        if not error <= limit:
            return (
                f"with the cell's own optimizer the loss of step {step} is {value:.6g}, on a single device {wanted:.6g}: "
                f"off by {error:.2g}, more than {limit:.2g}"
            )
    return None


def disagreement(digests: Sequence[dict[str, str]]) -> str | None:
    """Which parameter's copies differ between ranks, in a sentence; None if none do.

    Args:
        digests: rank -> parameter name -> hash of its bits.
    """
    seen: dict[str, dict[str, int]] = {}
    for rank, found in enumerate(digests):
        for name, digest in found.items():
            seen.setdefault(name, {}).setdefault(digest, rank)
    torn = {name: sorted(ranks.values()) for name, ranks in seen.items() if len(ranks) > 1}
    if not torn:
        return None
    name, ranks = next(iter(torn.items()))
    others = f" and {len(torn) - 1} more" if len(torn) > 1 else ""
    return f"ranks {' and '.join(map(str, ranks[:2]))} hold different copies of {name}{others}"


def _noise_floor(findings: Sequence[dict[str, Any]], noise: float) -> float:
    """Below which an update is rounding and no gradient."""
    moved = {name: entry["moved_reference"] for f in findings for name, entry in f["parameters"].items()}
    finite = [value for value in moved.values() if math.isfinite(value)]
    return noise * statistics.median(finite) if finite else 0.0


def _update_error(entry: dict[str, Any], floor: float) -> float:
    """A parameter that should not move must not; of others, the relative error of the update."""
    if entry["moved_reference"] <= floor:
        return 0.0 if entry["moved"] <= floor else entry["moved"] / floor if floor else math.inf
    return entry["update_error"]


def _digests(finding: dict[str, Any]) -> dict[str, str]:
    return {name: entry["digest"] for name, entry in finding["parameters"].items()}


def _skips(findings: Sequence[dict[str, Any]], reference: dict[str, Any]) -> str | None:
    if all(reference["skipped"]):
        return "loss scaling skipped every step of the reference, so that no update was compared"
    for rank, finding in enumerate(findings):
        if finding["skipped"] != reference["skipped"]:
            mine, its = (_steps(skips) for skips in (finding["skipped"], reference["skipped"]))
            return f"rank {rank} skipped {mine} and the reference {its}"
    return None


def _steps(skips: Sequence[bool]) -> str:
    numbers = [str(i) for i, skipped in enumerate(skips) if skipped]
    return f"step {', '.join(numbers)}" if numbers else "no step"


def _start(findings: Sequence[dict[str, Any]]) -> str | None:
    for finding in findings:
        for name, entry in finding["parameters"].items():
            if not entry["start_error"] <= entry["start_limit"]:
                return f"{name} does not start from the reference's weights: it is off by {entry['start_error']:.2g}"
    return None


def _names(findings: Sequence[dict[str, Any]], reference: dict[str, Any]) -> str | None:
    held, wanted = {name for f in findings for name in f["parameters"]}, set(reference["parameters"])
    if wanted - held:
        return f"no rank holds {', '.join(sorted(wanted - held)[:3])}"
    if held - wanted:
        return f"{', '.join(sorted(held - wanted)[:3])} is no parameter of the model"
    return None


def _mean(values: Iterable[float | None]) -> float:
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else math.nan


def _relative(value: float | None, wanted: float) -> float:
    return math.nan if value is None else abs(value - wanted) / abs(wanted)


def _worst(errors: Iterable[float]) -> float:
    """The largest error; NaN if one is."""
    errors = list(errors)
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0)


def _number(value: float | None) -> float | None:
    """None for what JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None


def _finite(values: Sequence[float]) -> list[float]:
    """The values up to the first that JSON cannot hold."""
    bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), len(values))
    return list(values[:bad])
