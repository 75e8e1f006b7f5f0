"""What only shows with several processes: groups, decisions that must be one, and that training learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.compose import illegal
from benchmarks.layout import Layout
from benchmarks.registry import AXES
from benchmarks.strategies import strategies
from tests.parity.conftest import SITE, cell, each

BATCH = {"global": 8, "microbatches": 2, "sequence": 32}
HYBRIDS = [
    "pp=2:gpipe,dp=2:fsdp",
    "pp=2:manual,tp=2:hand",
    "tp=2:dtensor,dp=2:zero1",
    "pp=2:zbv,dp=2:ddp",
    "pp=2:zbv,dp=2:fsdp",
    "pp=2:zbv,dp=2:zero1",
]


def ranks(launcher: Any, function: str, layout: str, folder: Path, **fields: Any) -> list[dict[str, Any]]:
    """The answers of all ranks."""
    made = cell(layout, **{"batch": BATCH, **fields})
    assert illegal(made, SITE) is None
    outcome = launcher.run(
        f"tests.benchmarks.ranks:{function}",
        made.model_dump(mode="json", by_alias=True),
        processes=made.processes,
        log_folder=folder,
        limits={"build": 120},
    )
    assert outcome.failure is None, outcome.failure
    return outcome.answers


@pytest.mark.parametrize("layout", [*(parameter for axis in AXES for parameter in each(axis)), *HYBRIDS])
def test_one_ranks_overflow_skips_the_step_of_all(launcher: Any, tmp_path: Path, layout: str):
    batch = {**BATCH, "microbatches": 4}  # what every schedule takes
    for answer in ranks(launcher, "overflow_on_one_rank", layout, tmp_path, precision="fp16", clip=1.0, batch=batch):
        assert answer == {"skipped": [True, False], "norm_of_skipped": False, "moved": [False, True]}


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("pp=2:manual", []),
        ("pp=2:gpipe", ["bookkeeping"]),
        ("pp=2:zbv", ["bookkeeping"]),  # two parts on each process
        ("tp=2:hand", ["collectives"]),
        ("pp=2:interleaved,tp=2:dtensor", ["bookkeeping", "collectives", "dispatch"]),
    ],
)
def test_what_slows_a_strategy_on_a_cpu_alone_is_said_once(launcher: Any, tmp_path: Path, layout: str, words: list[str]):
    for said in ranks(launcher, "caveats", layout, tmp_path):
        assert [caveat.partition(":")[0] for caveat in said] == words
        assert all("that is no property of" in caveat for caveat in said)


def test_bookkeeping_is_no_matter_on_a_gpu():
    pipeline = strategies(Layout.parse("pp=2:gpipe"))["pp"]
    assert pipeline.caveats("cuda") == () != pipeline.caveats("cpu")


@pytest.mark.parametrize("layout", ["single", "pp=2:devices"])
def test_a_parameter_without_a_gradient_fails_the_cell(launcher: Any, tmp_path: Path, layout: str):
    (answer,) = ranks(launcher, "missing_gradient", layout, tmp_path)
    assert answer == {"said": "parameter 'head.norm.weight' has no gradient after backward"}


def test_ranks_of_two_by_two_by_two(launcher: Any, tmp_path: Path):
    # Tensor ranks are neighbours, pipeline ranks are furthest apart: rank = 4 pp + 2 dp + tp.
    answers = ranks(launcher, "coordinates", "pp=2:gpipe,tp=2:hand,dp=2:ddp", tmp_path)
    for rank, answer in enumerate(answers):
        pp, dp, tp = rank // 4, rank // 2 % 2, rank % 2
        assert answer["coordinates"] == {"pp": pp, "dp": dp, "tp": tp}
        assert answer["pp"] == answer["ends"] == [2 * dp + tp, 4 + 2 * dp + tp]
        assert answer["dp"] == [4 * pp + tp, 4 * pp + 2 + tp]
        assert answer["tp"] == [4 * pp + 2 * dp, 4 * pp + 2 * dp + 1]
        assert answer["model"] == [2 * dp, 2 * dp + 1, 4 + 2 * dp, 4 + 2 * dp + 1]
        assert answer["next_stage"] == 4 + 2 * dp + tp


def test_a_synchronised_norm_is_the_norm_of_the_whole_batch(launcher: Any, tmp_path: Path):
    for answer in ranks(launcher, "synchronised_norm", "dp=2:ddp", tmp_path):
        assert max(answer["errors"]) < 2e-6
        assert answer["kind"] == "SynchronisedBatchNorm"


def test_the_loss_falls(launcher: Any, tmp_path: Path):
    optimizer = {"learning_rate": 3e-3}
    for answer in ranks(launcher, "losses", "dp=2:ddp", tmp_path, batch={"global": 16, "sequence": 64}, optimizer=optimizer):
        found = answer["losses"]
        # Bytes at random cost log(256) = 5.55 nats; the frequencies of bytes in source alone bring it below 3.7.
        assert sum(found[-10:]) / 10 < 3.7 < 5 < found[0]
