"""Activation checkpointing: keep a block's input, run its forward again when backward needs what is inside.

Memory falls from all activations of all blocks to one input a block plus the inside of one block; compute grows by one
forward (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
"""

from __future__ import annotations

import functools

from torch.utils.checkpoint import checkpoint

from benchmarks.contract import Part


def apply_checkpointing(part: Part, policy: str) -> None:
    """Recompute `part`'s blocks in backward.

    Args:
        policy: `none`, or `full` for every block.
    """
    if policy == "none":
        return
    for name in part.blocks:
        block = part.module.get_submodule(name)
        # Replacing `forward`, not the module, leaves parameter names and the hooks of data strategies as they are.
        # Nothing in the models is random (dropout 0), so no generator state needs to be kept.
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
