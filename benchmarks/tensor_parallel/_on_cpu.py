"""What makes tensor parallelism slower on a CPU than it is, for the record of a cell."""

from __future__ import annotations

from benchmarks.contract import Assembly
from benchmarks.world import World

COLLECTIVES = (
    "collectives: on a CPU each sum over tensor ranks goes through gloo's threads and sockets, a fixed time while the layer "
    "waits, which makes a small step slower than on one device; that is no property of tensor parallelism"
)


def caveats(assembly: Assembly, world: World, *own: str) -> tuple[str, ...]:
    """The assembly's caveats, and on a CPU those of all tensor parallelism and of one implementation, each once."""
    return tuple(dict.fromkeys((*assembly.caveats, COLLECTIVES, *own))) if world.device.type == "cpu" else assembly.caveats
