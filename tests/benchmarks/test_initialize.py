"""Weights are a function of seed and name, and every rank gets its slice of them, whoever cut it."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from benchmarks import initialize, models
from benchmarks.contract import Model, Part, Placement


@dataclass
class Seat:
    """What `materialize` asks of a world."""

    degrees: dict[str, int] = field(default_factory=dict)
    coordinates: dict[str, int] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")
    seed: int = 11

    def coordinate(self, axis: str) -> int:
        return self.coordinates[axis]


def part_of(model: Model, units: tuple[str, ...] | None = None) -> Part:
    chain = initialize.chain(model, units or model.units)
    return Part(
        model=model, module=chain, index=0, count=1, blocks=model.blocks, placements=initialize.placements(model, chain)
    )


# ------------------------------------------------------------------------------------------------ values


def test_a_value_follows_from_seed_and_name_alone() -> None:
    model = models.load("llama-tiny")
    first = initialize.full(model, "block1.mlp.up.weight", 0)
    torch.manual_seed(99)
    initialize.full(model, "block0.mlp.up.weight", 0)
    assert torch.equal(first, initialize.full(models.load("llama-tiny"), "block1.mlp.up.weight", 0))
    assert not torch.equal(first, initialize.full(model, "block2.mlp.up.weight", 0))
    assert not torch.equal(first, initialize.full(model, "block1.mlp.up.weight", 1))
    assert initialize.full(model, "block1.mlp.up.weight", -1).shape == (192, 64)


def test_initial_values_are_gpt2s() -> None:
    model = models.load("gpt2-124m[blocks=2]")  # at this width the deviation is the published 0.02
    assert initialize.full(model, "block0.mlp.up.weight", 0).std().item() == pytest.approx(0.02, rel=0.01)
    assert initialize.full(model, "block0.mlp.down.weight", 0).std().item() == pytest.approx(0.02 / 4**0.5, rel=0.01)
    assert initialize.full(model, "block1.attention.output.weight", 0).std().item() == pytest.approx(0.01, rel=0.01)
    assert torch.equal(initialize.full(model, "block0.mlp.up.bias", 0), torch.zeros(3072))
    assert torch.equal(initialize.full(model, "head.norm.weight", 0), torch.ones(768))


# ------------------------------------------------------------------------------------------------ chains


def test_both_ends_of_a_tie_are_one_parameter() -> None:
    model = models.load("gpt2-tiny")
    part = part_of(model)
    materialized = part.module.head.linear.weight
    assert materialized is part.module.embedding.token.weight
    assert part.placements["head.linear.weight"] == part.placements["embedding.token.weight"]
    initialize.materialize(part, Seat())
    assert part.module.head.linear.weight is part.module.embedding.token.weight is materialized
    assert sum(p.numel() for p in part.module.parameters()) == model.parameter_count()


def test_the_second_end_alone_has_the_first_ones_name_and_value() -> None:
    model = models.load("gpt2-tiny")
    part = part_of(model, ("block3", "head"))
    assert part.placements["head.linear.weight"] == Placement(name="embedding.token.weight", shape=(256, 64))
    assert part.placements["head.norm.bias"].name == "head.norm.bias"
    initialize.materialize(part, Seat())
    assert torch.equal(part.module.head.linear.weight, initialize.full(model, "embedding.token.weight", 11))


def test_only_the_module_asked_for_becomes_real() -> None:
    part = part_of(models.load("llama-tiny"))
    initialize.materialize(part, Seat(), module=part.module.block1)
    real = {name.split(".")[0] for name, p in part.module.named_parameters() if not p.is_meta}
    assert real == {"block1"}
    kept = part.module.block1.mlp.up.weight.detach().clone()
    with torch.no_grad():
        part.module.block1.mlp.up.weight.add_(1)
    initialize.materialize(part, Seat())
    assert torch.equal(part.module.block1.mlp.up.weight, kept + 1), "what is real must stay as it is"
    assert not any(p.is_meta for p in part.module.parameters())


def test_parameters_stay_the_same_objects_with_their_marks() -> None:
    part = part_of(models.load("llama-tiny"))
    before = dict(part.module.named_parameters())
    before["head.norm.weight"].mark = "kept"
    before["block0.mlp.up.weight"].requires_grad_(False)
    initialize.materialize(part, Seat())
    after = dict(part.module.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert after["head.norm.weight"].mark == "kept"
    assert not after["block0.mlp.up.weight"].requires_grad


def test_units_go_to_their_own_devices() -> None:
    part = part_of(models.load("llama-tiny[blocks=1]"))
    part.devices = {"block0": torch.device("meta")}  # the only second device of every machine
    initialize.materialize(part, Seat())
    assert {p.device.type for p in part.module.block0.parameters()} == {"meta"}
    assert {p.device.type for p in part.module.head.parameters()} == {"cpu"}


# ------------------------------------------------------------------------------------------------ shards by hand


@pytest.mark.parametrize("coordinates", [{"tp": 0, "ep": 1}, {"tp": 3, "ep": 0}, {"tp": 2, "ep": 1}])
def test_a_shard_made_alone_is_a_slice_of_the_whole(coordinates: dict[str, int]) -> None:
    model = models.load("gpt2-tiny")
    part = part_of(model, ("block0",))
    cuts = {
        "block0.mlp.up.weight": ({"tp": 0}, (64, 64)),
        "block0.mlp.up.bias": ({"tp": 0}, (64,)),
        "block0.mlp.down.weight": ({"tp": 1, "ep": 0}, (32, 64)),
    }
    for name, (shards, shape) in cuts.items():
        owner, _, attribute = name.rpartition(".")
        setattr(part.module.get_submodule(owner), attribute, nn.Parameter(torch.empty(shape, device="meta")))
        for axis, dimension in shards.items():
            part.placements[name] = part.placements[name].sharded(axis, dimension)
    initialize.materialize(part, Seat(degrees={"tp": 4, "ep": 2}, coordinates=coordinates))

    i, j = coordinates["tp"], coordinates["ep"]
    value = {name: initialize.full(model, name, 11) for name in part.placements}
    assert torch.equal(part.module.block0.mlp.up.weight, value["block0.mlp.up.weight"][64 * i : 64 * i + 64])
    assert torch.equal(part.module.block0.mlp.up.bias, value["block0.mlp.up.bias"][64 * i : 64 * i + 64])
    rows, columns = slice(32 * j, 32 * j + 32), slice(64 * i, 64 * i + 64)
    assert torch.equal(part.module.block0.mlp.down.weight, value["block0.mlp.down.weight"][rows, columns])
    assert torch.equal(part.module.block0.mlp.down.bias, value["block0.mlp.down.bias"])


def test_a_shard_does_not_keep_the_whole_alive() -> None:
    part = part_of(models.load("llama-tiny[blocks=1]"), ("block0",))
    name = "block0.mlp.up.weight"
    part.module.block0.mlp.up.weight = nn.Parameter(torch.empty(48, 64, device="meta"))
    part.placements[name] = part.placements[name].sharded("tp", 0)
    initialize.materialize(part, Seat(degrees={"tp": 4}, coordinates={"tp": 1}))
    assert part.module.block0.mlp.up.weight.untyped_storage().nbytes() == 48 * 64 * 4


# ------------------------------------------------------------------------------------------------ DTensor and FSDP2


def on_four_ranks(rank: int, rendezvous: str) -> None:
    """One of four processes, as 2 data x 2 tensor ranks; an assertion that fails ends it with status 1."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, 4), rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    seat = Seat(degrees={"dp": 2, "tp": 2}, coordinates={"dp": rank // 2, "tp": rank % 2})
    shard_dtensors(mesh, seat)
    shard_what_was_cut_by_hand(mesh, seat)
    shard_unevenly(seat)
    dist.destroy_process_group()


def shard_dtensors(mesh, seat: Seat) -> None:
    """fully_shard over DTensors on the meta device; both cut dimension 0 of a column layer."""
    model = models.load("gpt2-tiny[blocks=1]")
    part = part_of(model)
    plan = {"block0.mlp.up": ColwiseParallel(), "block0.mlp.down": RowwiseParallel()}
    parallelize_module(part.module, mesh["tp"], plan)
    part.placements["block0.mlp.up.weight"] = part.placements["block0.mlp.up.weight"].sharded("tp", 0)
    fully_shard(part.module.block0, mesh=mesh["dp"])
    fully_shard(part.module, mesh=mesh["dp"])
    before = list(part.module.parameters())
    initialize.materialize(part, seat)
    assert all(a is b for a, b in zip(before, part.module.parameters(), strict=True))
    check_whole_values(part, model)
    tokens = torch.randint(0, 256, (2, 8), generator=torch.Generator().manual_seed(0))
    plain = part_of(model)
    initialize.materialize(plain, seat)
    torch.testing.assert_close(part.module(tokens), plain.module(tokens))


def shard_what_was_cut_by_hand(mesh, seat: Seat) -> None:
    """fully_shard over plain parameters of a rank's share."""
    model = models.load("llama-tiny[blocks=1]")
    part = part_of(model, ("block0",))
    name = "block0.mlp.down.weight"
    part.module.block0.mlp.down.weight = nn.Parameter(torch.empty(64, 96, device="meta"))
    part.placements[name] = part.placements[name].sharded("tp", 1)
    fully_shard(part.module, mesh=mesh["dp"])
    initialize.materialize(part, seat)
    column = 96 * seat.coordinates["tp"]
    expected = initialize.full(model, name, seat.seed)[:, column : column + 96]
    assert torch.equal(part.module.block0.mlp.down.weight.full_tensor(), expected)


def shard_unevenly(seat: Seat) -> None:
    """Dimensions of 257 and 3 over four ranks: the last rank has less, or nothing."""
    model = models.load("gpt2-tiny[blocks=1,vocabulary=257,hidden=6,heads=2,mlp=3]")
    part = part_of(model)
    fully_shard(part.module, mesh=init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)))
    initialize.materialize(part, seat)
    check_whole_values(part, model)
    part.module(torch.zeros(1, 4, dtype=torch.long)).sum().backward()


def check_whole_values(part: Part, model: Model) -> None:
    for name, parameter in part.module.named_parameters():
        assert isinstance(parameter, DTensor), name
        assert torch.equal(parameter.full_tensor(), initialize.full(model, part.placements[name].name, 11)), name


def test_dtensors_and_fully_sharded_parameters(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=on_four_ranks, args=(rank, str(tmp_path / "store"))) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0, 0, 0]
