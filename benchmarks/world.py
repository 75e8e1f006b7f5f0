"""One rank's view of the world: its devices, process groups and mesh. The one place that knows cuda from cpu."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from benchmarks.cell import Cell
from benchmarks.strategies import process_degrees


@dataclass(kw_only=True)
class World:
    """Ranks are numbered row by row over `degrees`, the last axis fastest."""

    rank: int
    size: int
    devices: tuple[torch.device, ...]
    """This process's own devices; several where a strategy drives several from one process."""
    degrees: Mapping[str, int]
    """Axis -> number of processes along it, outermost first: `pp`, `dp`, `tp`. Tensor ranks are neighbours,
    as they talk most; pipeline ranks are furthest apart, as they talk least."""
    seed: int
    dimensions: Mapping[str, int]
    """Mesh dimension -> its size, of what the layout is spread along. A nested `dp=2x4` is two of them, `dp_outer` and
    `dp_inner`, and both together are `dp`."""
    _mesh: DeviceMesh | None = None
    _groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)

    @classmethod
    def start(cls, cell: Cell, *, rank: int, size: int, rendezvous: Path, device_kind: str) -> World:
        """Join the process group and build the mesh.

        Args:
            rendezvous: a path on a file system that all ranks share, where no file is yet.
            device_kind: `cpu` or `cuda`.
        """
        degrees = process_degrees(cell.layout)
        per_process = cell.layout.devices // size
        if device_kind == "cuda":
            devices = tuple(torch.device("cuda", rank * per_process + i) for i in range(per_process))
            torch.cuda.set_device(devices[0])
            backend = "cpu:gloo,cuda:nccl"
        else:
            devices = (torch.device("cpu"),) * per_process
            backend = "gloo"
        # DeepSpeed and torchrun's habits read these; torch itself is told directly.
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
        store = dist.FileStore(str(rendezvous), size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(minutes=30))
        dimensions: dict[str, int] = {}
        nested = set()
        for axis, degree in degrees.items():
            written = cell.layout.get(axis)
            if degree > 1 and written is not None and len(written.degrees) > 1:
                dimensions.update(zip(nested_dimensions(axis), written.degrees, strict=True))
                nested.add(axis)
            elif degree > 1:
                dimensions[axis] = degree
        mesh = None
        if dimensions:
            mesh = init_device_mesh(device_kind, tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))
        for axis in nested:
            mesh[nested_dimensions(axis)]._flatten(axis)
            dimensions[axis] = degrees[axis]
        return cls(rank=rank, size=size, devices=devices, degrees=degrees, seed=cell.seed, dimensions=dimensions, _mesh=mesh)

    @property
    def device(self) -> torch.device:
        """The device of a process that has one; the first of those that have several."""
        return self.devices[0]

    def coordinate(self, axis: str) -> int:
        """This rank's position along `axis`; 0 where the layout is not spread along it."""
        return self._coordinates(self.rank)[axis]

    def peer(self, axis: str, coordinate: int) -> int:
        """The global rank at `coordinate` along `axis` whose other coordinates are this rank's."""
        wanted = {**self._coordinates(self.rank), axis: coordinate}
        return next(r for r in range(self.size) if self._coordinates(r) == wanted)

    def group(self, name: str) -> dist.ProcessGroup | None:
        """The process group of an axis or mesh dimension, or one made by `make_group`; None where it would hold this rank
        alone."""
        if name in self._groups:
            return self._groups[name]
        if self.dimensions.get(name, 1) == 1:
            return None
        return self.mesh(name).get_group()

    def mesh(self, *dimensions: str) -> DeviceMesh:
        """The mesh of an axis of degree 2 or more, or of several mesh dimensions."""
        assert self._mesh is not None
        return self._mesh[dimensions if len(dimensions) > 1 else dimensions[0]]

    def make_group(self, name: str, axes: Sequence[str], only: Mapping[str, Sequence[int]] | None = None) -> None:
        """Make a group of the ranks that differ from this one along `axes` alone; every rank must call it.

        Args:
            name: what `group` will know it by.
            only: axis -> the coordinates that take part, where not all do.
        """
        lists: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            coordinates = self._coordinates(rank)
            if all(coordinates[axis] in kept for axis, kept in (only or {}).items()):
                key = tuple(c for axis, c in coordinates.items() if axis not in axes)
                lists.setdefault(key, []).append(rank)
        for ranks in lists.values():
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self._groups[name] = group

    def synchronize(self) -> None:
        """Wait until this process's devices have done what they were given."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def _coordinates(self, rank: int) -> dict[str, int]:
        found = {}
        for axis, degree in reversed(self.degrees.items()):
            rank, found[axis] = divmod(rank, degree)
        return found


def nested_dimensions(axis: str) -> tuple[str, str]:
    """The mesh dimensions of an axis with two degrees: the outer one, whose ranks are further apart, and the inner one."""
    return f"{axis}_outer", f"{axis}_inner"
