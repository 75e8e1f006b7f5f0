"""The same weights in every layout: each parameter is made from the seed and its name, so any rank makes its shard alone.

Modules are built on the meta device, where they cost no memory, cut there, and made real here one parameter at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from benchmarks.contract import Chain, Model, Part, Placement

if TYPE_CHECKING:
    from benchmarks.world import World


def chain(model: Model, units: Sequence[str]) -> Chain:
    """Some units of a model in order, on the meta device.

    Where both ends of a tie are among them they share one Parameter; where only the second is, it has its own.
    """
    with torch.device("meta"):
        built = Chain({unit: model.build(unit) for unit in units})
    for name, canonical in model.tied.items():
        if {_unit(name), _unit(canonical)} <= set(units):
            owner, _, attribute = name.rpartition(".")
            built.get_submodule(owner).register_parameter(attribute, built.get_parameter(canonical))
    return built


def placements(model: Model, chain: Chain) -> dict[str, Placement]:
    """Parameter name in `chain` -> where it comes from, as long as nothing is cut.

    A tied second name is there too, and its placement has the first one's name.
    """
    names = (name for name, _ in chain.named_parameters(remove_duplicate=False))
    origins = {name: model.tied.get(name, name) for name in names}
    return {name: Placement(name=origin, shape=model.parameter_shapes[origin]) for name, origin in origins.items()}


def full(model: Model, name: str, seed: int) -> Tensor:
    """The whole fp32 value of one parameter on the CPU, the same on every rank and in every layout.

    Args:
        name: its single-device name; of tied parameters, the first one's.
    """

    def draw(name: str) -> torch.Generator:
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))

    return model.first_value(name, draw)


@torch.no_grad()
def materialize(part: Part, world: World, module: nn.Module | None = None, device: torch.device | None = None) -> None:
    """Make meta parameters real and give them this rank's share of their initial values.

    Parameters may be whole, cut by hand, or DTensors cut by tensor parallelism or fully sharded, or both. Each
    Parameter stays the same object. One whole value is held at a time.

    Args:
        part: its module is, or holds the units of, a `chain`.
        module: only the parameters below this module of `part`; default: all.
        device: where they go; default: the unit's own device, or the rank's.
    """
    wanted = None if module is None else {id(p) for p in module.parameters()}
    for name, parameter in part.module.named_parameters():
        if not parameter.is_meta or (wanted is not None and id(parameter) not in wanted):
            continue
        placement = part.placements[name]
        value = _share(full(part.model, placement.name, world.seed), parameter, placement, world)
        shape = parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape
        assert value.shape == shape, f"{name}: the shard should be {tuple(shape)} but the placement gives {tuple(value.shape)}"
        where = device or part.devices.get(_unit(name)) or world.device
        # A new tensor, so that the whole value behind the shard is freed.
        _make_real(parameter, torch.empty(value.shape, dtype=parameter.dtype, device=where).copy_(value))


def _share(value: Tensor, parameter: nn.Parameter, placement: Placement, world: World) -> Tensor:
    """The elements of the whole `value` that this rank holds of `parameter`; a view."""
    if parameter.shape != value.shape:
        # Cut by hand. A DTensor that tensor parallelism made has the whole shape and knows its own cut.
        for axis, dimension in placement.shards.items():
            size, rest = divmod(value.size(dimension), world.degrees[axis])
            assert rest == 0, f"{placement.name}: {axis} does not divide dimension {dimension} of {placement.shape}"
            value = value.narrow(dimension, world.coordinate(axis) * size, size)
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        # Innermost axis first: fully_shard cuts what tensor parallelism has cut before. Where the two cut different
        # dimensions the order does not matter.
        for axis in reversed(range(mesh.ndim)):
            if not parameter.placements[axis].is_replicate():
                dimension = parameter.placements[axis].dim
                length = value.size(dimension)
                size = -(-length // mesh.size(axis))  # the last ranks get less, or nothing
                start = min(size * mesh.get_local_rank(axis), length)
                value = value.narrow(dimension, start, min(size, length - start))
    return value


def _make_real(parameter: nn.Parameter, local: Tensor) -> None:
    """Put `local` in the place of a meta parameter's elements; whoever holds the Parameter sees them."""
    if isinstance(parameter, DTensor):
        mesh, cuts = parameter.device_mesh, parameter.placements
        local = DTensor.from_local(local, mesh, cuts, run_check=False, shape=parameter.shape, stride=parameter.stride())
    real = nn.Parameter(local, requires_grad=parameter.requires_grad)
    real.__dict__.update(parameter.__dict__)
    torch.utils.swap_tensors(parameter, real)


def _unit(name: str) -> str:
    return name.partition(".")[0]
