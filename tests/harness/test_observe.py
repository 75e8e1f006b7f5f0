"""The observer sees dtypes, collectives, microbatches and recomputation as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.cell import Cell
from benchmarks.techniques.checkpointing import apply_checkpointing
from benchmarks.techniques.precision import PRECISIONS
from harness.batches import Batches
from harness.launch.entry import Seat
from harness.launch.local import Launcher
from harness.observe import Observer, axes_of
from tests.harness.plain_engine import WORLD, PlainEngine

CELL = Cell.model_validate({"model": "llama-tiny[blocks=2]", "batch": {"global": 4, "sequence": 32}})


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters)


def seen(engine: PlainEngine) -> dict[str, Any]:
    with Observer(engine, WORLD) as observer:
        engine.step(Batches(CELL, engine.model, WORLD).take())
    return observer.finding()


def test_one_step_in_fp32() -> None:
    found = seen(PlainEngine(CELL.model, adamw))
    for subject in ("parameters", "compute", "gradients", "optimizer_state"):
        assert found["dtypes"][subject] == ["fp32"], subject
    assert found["dtypes"]["reduction"] == [] and found["collectives"] == {}
    assert found["attention_backend"] == "flash"
    assert found["parts"] == [
        {"index": 0, "units": ["embedding", "block0", "block1", "head"], "forwards": 1, "blocks": {"block0": 1, "block1": 1}}
    ]


def test_autocast_computes_in_its_dtype_alone() -> None:
    found = seen(PlainEngine(CELL.model, adamw, autocast=torch.bfloat16))
    assert found["dtypes"]["compute"] == ["bf16"]
    assert found["dtypes"]["parameters"] == found["dtypes"]["gradients"] == ["fp32"]


def test_a_model_in_sixteen_bits_is_seen_to_be() -> None:
    engine = PlainEngine(CELL.model, adamw, autocast=torch.bfloat16)
    engine.module.bfloat16()
    engine.optimizer = adamw(engine.module.parameters())
    found = seen(engine)["dtypes"]
    assert found["parameters"] == found["gradients"] == found["optimizer_state"] == ["bf16"]


def test_microbatches_and_repeated_forwards_are_counted() -> None:
    engine = PlainEngine(CELL.model, adamw, microbatches=4)
    apply_checkpointing(engine.parts[0], "full", PRECISIONS["fp32"], "cpu")
    part = seen(engine)["parts"][0]
    assert part["forwards"] == 4
    assert part["blocks"] == {"block0": 8, "block1": 8}


def test_nothing_is_left_behind() -> None:
    engine = PlainEngine(CELL.model, adamw)
    seen(engine)
    assert not engine.module._forward_pre_hooks
    assert not any(module._forward_pre_hooks for module in engine.module.modules())
    assert seen(engine)["parts"][0]["forwards"] == 1


def test_ranks_are_named_by_the_axes_along_which_they_differ() -> None:
    degrees = {"pp": 2, "dp": 2, "tp": 2}  # rank = 4 pp + 2 dp + tp
    assert axes_of([0, 1], degrees) == "tp"
    assert axes_of([1, 3], degrees) == "dp"
    assert axes_of([2, 6], degrees) == "pp"
    assert axes_of([0, 1, 4, 5], degrees) == "pp+tp"
    assert axes_of(list(range(8)), degrees) == "pp+dp+tp"
    assert axes_of([3], degrees) == "none"


def communicate(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """In ranks: known collectives over known groups, under the observer."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    from benchmarks.world import World

    cell = Cell.model_validate(payload["cell"])
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    engine = PlainEngine(cell.model, adamw)
    with Observer(engine, world) as observer:
        dist.all_reduce(torch.zeros(100, dtype=torch.bfloat16), group=world.group("dp"))
        dist.all_reduce(torch.zeros(1), group=world.group("dp"))  # a flag, not a gradient
        dist.reduce_scatter_tensor(torch.zeros(25), torch.zeros(50), group=world.group("dp"))
        dist.all_gather_into_tensor(torch.zeros(64), torch.zeros(32), group=world.group("tp"))
        functional.all_reduce(torch.zeros(16, dtype=torch.float64), "sum", world.group("tp")).add(1)
        dist.barrier()
    return observer.finding()


def test_collectives_are_seen_by_axis_with_their_whole_size(launcher: Launcher, logs: Path) -> None:
    cell = CELL.model_copy(update={"layout": CELL.layout.parse("tp=2:hand,dp=2:ddp"), "processes": 4, "devices": 4})
    payload = {"cell": cell.model_dump(mode="json", by_alias=True)}
    function, limits = "tests.harness.test_observe:communicate", {"build": 60.0}
    outcome = launcher.run(function, payload, processes=4, log_folder=logs, limits=limits)
    assert outcome.failure is None, outcome.failure
    for found in outcome.answers:
        assert found["collectives"] == {
            "dp": {
                "all_reduce": {"count": 2, "bytes": 100 * 2 + 4},
                "reduce_scatter": {"count": 1, "bytes": 50 * 4},
            },
            "tp": {"all_gather": {"count": 1, "bytes": 64 * 4}, "all_reduce": {"count": 1, "bytes": 16 * 8}},
        }
        assert found["dtypes"]["reduction"] == ["bf16", "fp32"]
