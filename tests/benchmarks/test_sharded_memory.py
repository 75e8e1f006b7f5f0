"""Bytes of each rank against the formulas of the ZeRO paper (Rajbhandari et al., 2020, section 5), for P parameters in fp32.

Stage 1 cuts the optimizer's state, stage 2 gradients too, stage 3 parameters too. Of the paper's K = 12 bytes of state with
Adam, 8 are its two numbers, and 4 are a master copy, which DeepSpeed keeps in fp32 as well and FairScale does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import models
from tests.benchmarks.test_ranks import ranks

MODEL = "llama-tiny[hidden=128,mlp=512]"
BATCH = {"global": 4, "microbatches": 1, "sequence": 8}
SMALL = "bucket_elements=1000"
# Which of parameters, gradients and state are cut, and the bytes of state for each parameter.
STAGES = {
    "zero0": ("", 8),
    f"zero1[{SMALL}]": ("state", 12),
    f"zero2[{SMALL}]": ("gradients state", 12),
    f"zero3[{SMALL},prefetch_elements=1000]": ("parameters gradients state", 12),
    "fairscale-oss": ("state", 8),
    "fairscale-sdp[reduce_buffer_elements=0]": ("gradients state", 8),
    "fairscale-fsdp[bucket_mb=0]": ("parameters gradients state", 8),
}


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("name", STAGES)
def test_a_rank_holds_what_the_paper_says(launcher: Any, tmp_path: Path, name: str, degree: int):
    cut, state_bytes = STAGES[name]
    parameters, gradients, state = (
        size / (degree if kind in cut else 1) for kind, size in (("parameters", 4), ("gradients", 4), ("state", state_bytes))
    )
    elements = models.load(MODEL).parameter_count()
    answers = ranks(launcher, "resting_and_full_bytes", f"dp={degree}:{name}", tmp_path, model=MODEL, batch=BATCH)
    for answer in answers:
        assert answer["full"] / elements == pytest.approx(parameters + gradients + state, rel=0.05)
        # Between steps gradients may be kept, and never anything besides.
        assert answer["resting"] / elements < (parameters + gradients + state) * 1.05
        assert answer["resting"] / elements > (parameters + state) * 0.95


@pytest.mark.parametrize("name", STAGES)
def test_the_optimizers_state_is_cut_alone(launcher: Any, tmp_path: Path, name: str):
    with_state, without = (
        ranks(launcher, "resting_and_full_bytes", f"dp=2:{name}", tmp_path, model=MODEL, batch=BATCH, optimizer={"name": kind})
        for kind in ("adamw", "sgd")
    )
    elements = models.load(MODEL).parameter_count()
    adam = 8 / (2 if "state" in STAGES[name][0] else 1)
    for answer, plain in zip(with_state, without, strict=True):
        assert (answer["resting"] - plain["resting"]) / elements == pytest.approx(adam, rel=0.05)
