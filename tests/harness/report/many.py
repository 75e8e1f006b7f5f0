"""Run folders of any size, made of nothing: records of every kind, as a large matrix would leave them behind."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

MODELS = ("llama-tiny", "llama-125m", "llama-1b", "gpt2-1.5b", "gpt2-tiny")
LAYOUTS = (
    "single",
    *(f"dp={n}:{how}" for n in (2, 4, 8) for how in ("ddp", "fsdp", "zero1")),
    *(f"tp={n}:{how}" for n in (2, 4, 8) for how in ("hand", "dtensor")),
    *(f"pp={n}:{how}" for n in (2, 4) for how in ("gpipe", "1f1b", "manual")),
    *(f"tp={n}:{tp},dp={m}:{dp}" for n, m in ((2, 2), (2, 4), (4, 2)) for tp in ("hand", "dtensor") for dp in ("ddp", "fsdp")),
    *(f"pp=2:{pp},dp={n}:ddp" for n in (2, 4) for pp in ("gpipe", "1f1b")),
)
TECHNIQUES = tuple(itertools.product(("fp32", "bf16", "fp16"), ("none", "full")))
PARTS = {"parameters": 0.3, "gradients": 0.2, "optimizer_state": 0.3, "activations": 0.15, "other": 0.05}
LOST = {
    "oom": ("warmup", "rank 0 ran out of memory: 81.2 GiB were asked for on a device of 80 GiB"),
    "skipped": (None, "2 key-value heads cannot be cut 4 ways"),
    "crashed": ("build", "rank 1 raised RuntimeError: a made-up failure"),
    "timeout": ("measure", "no step ended within 900 s"),
}
MIB = 2**20


def lines(count: int) -> Iterator[str]:
    """`count` lines of a `records.jsonl`, the same every time; every tenth cell has no figure."""
    draw = random.Random(0)
    matrix = list(itertools.product(MODELS, TECHNIQUES, LAYOUTS))
    for number in range(count):
        batch, (model, technique, layout) = 8 * (1 + number // len(matrix)), matrix[number % len(matrix)]
        yield json.dumps(_record(number, batch, model, technique, layout, draw))


def folder(path: Path, count: int) -> Path:
    """A run folder with `count` records."""
    path.mkdir(parents=True)
    site = {"kind": "cuda", "count": 8, "memory_bytes": 80 * 2**30}
    (path / "run.json").write_text(json.dumps({"schema": 1, "suite": "made"}))
    (path / "environment.json").write_text(json.dumps({"id": "made", "site": site, "processor": "none", "cores": 2}))
    with (path / "records.jsonl").open("w") as file:
        file.writelines(line + "\n" for line in lines(count))
    return path


def _record(number: int, batch: int, model: str, technique: tuple[str, str], layout: str, draw: random.Random) -> dict:
    devices = 1
    for axis in layout.split(","):
        devices *= int(axis.split("=")[1].split(":")[0]) if "=" in axis else 1
    record = {
        "schema": 1, "run_id": "made", "cell_id": hashlib.sha256(str(number).encode()).hexdigest()[:12],
        "time": "2025-01-02T03:04:05Z", "environment_id": "made", "status": "ok", "caveats": [], "failed_rank": None,
        "cell": {"model": model, "layout": layout, "processes": devices, "devices": devices, "precision": technique[0],
                 "checkpointing": technique[1], "batch": {"global": batch, "microbatches": 1, "sequence": 64}},
    }  # fmt: skip
    if number % 10 == 9:
        status = list(LOST)[number // 10 % len(LOST)]
        phase, reason = LOST[status]
        return {**record, "status": status, "phase": phase, "reason": reason, "log_tail": f"Traceback of cell {number}"}
    factor = (1 + MODELS.index(model)) * (0.6 if technique[1] == "full" else 1.0)
    seconds = draw.uniform(0.02, 0.2) * factor * batch / devices**0.8
    samples = [seconds * draw.uniform(0.97, 1.05) for _ in range(30)]
    tokens = batch * 64 / seconds
    peak = (400 * factor / devices**0.5 + 30 * batch * (1 - 0.5 * (technique[1] == "full"))) * MIB * draw.uniform(0.9, 1.1)
    sizes = {"peak_memory_bytes": peak, **{f"memory_{part}_bytes": peak * share for part, share in PARTS.items()}}
    metrics = {name: {"value": size, "unit": "bytes", "per_rank": [size] * devices} for name, size in sizes.items()}
    metrics["tokens_per_second"] = {"value": tokens, "unit": "tokens/s", "low": tokens * 0.98, "high": tokens * 1.02}
    metrics["step_seconds"] = {"value": seconds, "unit": "s", "low": seconds * 0.98, "high": seconds * 1.02}
    if number % 7 == 0:
        record["caveats"] = [f"unstable: the step time still moved by {draw.uniform(2, 9):.1f}% after 10 warm-up steps"]
    return {
        **record,
        "metrics": metrics,
        "samples": {"step_seconds": samples, "warmup_seconds": [sample * 1.2 for sample in samples]},
        "durations": {"start": 0.3, "verify": 1.0, "measure": 1.5},
        "observed": {"dtypes": {"parameters": "fp32", "compute": technique[0]}, "microbatches": 1},
        "verification": {
            "reference": "0" * 12, "model": model, "losses": [5.5, 5.4, 5.3], "reference_losses": [5.5, 5.4, 5.3],
            "max_relative_loss_error": draw.uniform(0, 9e-7), "max_relative_gradient_norm_error": draw.uniform(0, 9e-6),
            "max_update_error": draw.uniform(0, 9e-4), "worst_parameter": "block0.norm.weight",
            "tolerance": {"loss": 1e-6, "gradient_norm": 1e-5, "update": 1e-3}, "verdict": "passed",
        },
    }  # fmt: skip
