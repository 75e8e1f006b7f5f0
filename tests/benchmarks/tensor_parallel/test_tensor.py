"""Tensor parallelism in pieces: collectives and their transposes, the cut cross entropy, and what cannot be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.compose import illegal
from benchmarks.registry import load, names
from tests.benchmarks.test_ranks import ranks
from tests.parity.conftest import SITE, cell

BATCH = {"global": 8, "sequence": 32}


def test_every_backward_is_the_transpose_of_its_forward(launcher: Any, tmp_path: Path):
    for answer in ranks(launcher, "transposes", "tp=2:hand", tmp_path):
        assert len(answer) == 6
        assert max(answer.values()) < 1e-12, answer


def test_the_cut_cross_entropy_is_that_of_the_whole(launcher: Any, tmp_path: Path):
    for answer in ranks(launcher, "cut_cross_entropy", "tp=2:hand", tmp_path):
        assert answer["loss"] == pytest.approx(answer["wanted"], rel=1e-6)
        assert answer["gradient_error"] < 1e-7


def test_the_cross_entropy_of_another_framework_is_that_of_the_whole(launcher: Any, tmp_path: Path):
    for answer in ranks(launcher, "cut_cross_entropy_of_a_layout", "tp=2:fairscale[loss=true]", tmp_path):
        assert answer["loss"] == pytest.approx(answer["wanted"], rel=1e-6)
        assert answer["gradient_error"] < 1e-7


@pytest.mark.parametrize(
    ("layout", "strides", "shims"),
    [
        ("pp=2:gpipe,tp=2:fairscale,dp=2:ddp", {"tp": 1, "dp": 2, "pp": 4}, 1),
        ("tp=2:fairscale,dp=2:ddp", {"tp": 1, "dp": 2}, 0),
    ],
)
def test_another_framework_sees_our_groups(launcher: Any, tmp_path: Path, layout: str, strides: dict[str, int], shims: int):
    for rank, answer in enumerate(ranks(launcher, "fairscale_groups", layout, tmp_path)):
        assert len(answer["shims"]) == shims
        for axis, stride in strides.items():  # the two ranks that differ along the axis alone
            first = rank - rank // stride % 2 * stride
            assert answer[axis] == [first, first + stride], (rank, axis)


REFUSED = [
    ("sequence=true", {"batch": {"global": 8, "sequence": 33}}, "shares 33 tokens over 2 ranks: use a multiple of 2"),
    ("sequence=true", {"model": "mlp-tiny", "batch": {"global": 8}}, "the samples of mlp-tiny are images"),
    ("loss=true", {"model": "gpt2-tiny[vocabulary=257]"}, "cuts the 257 outputs of gpt2-tiny[vocabulary=257] over 2 ranks"),
]


@pytest.mark.parametrize("name", names("tensor_parallel"))
@pytest.mark.parametrize(("knobs", "fields", "reason"), REFUSED)
def test_what_cannot_be_cut_is_refused(name: str, knobs: str, fields: dict[str, Any], reason: str):
    if not hasattr(load("tensor_parallel", name).Strategy, knobs.partition("=")[0]):
        return
    assert reason in illegal(cell(f"tp=2:{name}[{knobs}]", **{"batch": BATCH, **fields}), SITE)


def test_asynchronous_tensor_parallelism_says_what_it_needs():
    gpus = SITE.model_copy(update={"kind": "cuda"})
    asked = [
        ("asynchronous=true", "none", SITE, "it needs CUDA devices"),
        ("asynchronous=true", "model", gpus, "add sequence=true"),
        ("asynchronous=true,sequence=true", "none", gpus, "add compile=model"),
    ]
    for knobs, compiled, site, reason in asked:
        assert reason in illegal(cell(f"tp=2:dtensor[{knobs}]", compile=compiled, batch=BATCH), site)
    assert illegal(cell("tp=2:dtensor[asynchronous=true,sequence=true]", compile="model", batch=BATCH), gpus) is None
