"""How DeepSpeed joins a world that is already there; what every implementation on it begins with, whatever its axis."""

from __future__ import annotations

import deepspeed
import torch.distributed as dist

from benchmarks.world import World

PRELOAD = ("deepspeed.runtime.zero.muon.original_muon",)
"""What an engine of DeepSpeed imports for seconds; worth having before ranks are forked."""


def join(world: World) -> None:
    """Tell DeepSpeed of the process group that there is; calling it again changes nothing."""
    assert dist.is_initialized()
    if world.device.type == "cpu":
        # DeepSpeed would compile a shared-memory all-reduce for inference when it first initialises (deepspeed/comm/
        # torch.py, build_shm_op), a minute or two. Training never calls it; marked as incompatible it is left alone.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_init_required=False)
