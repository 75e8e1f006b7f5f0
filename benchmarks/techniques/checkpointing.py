"""Activation checkpointing: keep a block's input, run its forward again when backward needs what is inside.

Memory falls from all activations of all blocks to one input a block plus the inside of one block; compute grows by one
forward (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).

| policy | a block keeps | backward runs again |
|---|---|---|
| `none` | everything | nothing |
| `selective` | results of matrix products and attention | what is cheap: norms, activation functions, sums |
| `every-k` | everything, but its input alone in the first of every k blocks | those blocks |
| `full` | its input | every block |
| `fairscale` | its input | every block, by FairScale's wrapper (`techniques.fairscale_checkpointing`) |
| `deepspeed` | its input | every block, by DeepSpeed's function (`techniques.deepspeed_checkpointing`) |

In bytes, at the fullest moment of a step, of Llama in fp32 on a CPU, where a norm keeps both what it divided and what it
scaled, and attention its rotated queries, its keys and values as often as there are queries, and what it gives:

    inside of a block = positions x (9 hidden + 4 mlp) x 4
    none = blocks x (positions x hidden x 4 + inside) + head
    full = (blocks + 1) x positions x hidden x 4 + inside

`head` are the stream behind the last block, its norm, the logits and their softmax. With `full` they are gone when the last
block is run again.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch
from torch._ops import OpOverload
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from benchmarks.cell import Checkpointing, recomputes
from benchmarks.contract import Part
from benchmarks.techniques.precision import Precision

EXPENSIVE = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_scaled_mm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
"""What `selective` keeps: nearly all of a block's arithmetic."""
FRAMEWORKS = ("fairscale", "deepspeed")
"""Policies that are another framework's own."""


def framework(policy: Checkpointing) -> ModuleType | None:
    """What applies a policy that is another framework's; None where it is torch's.

    Raises:
        ImportError: the framework is not installed.
    """
    return importlib.import_module(f"benchmarks.techniques.{policy}_checkpointing") if policy in FRAMEWORKS else None


def apply_checkpointing(part: Part, policy: Checkpointing, precision: Precision, device_type: str) -> None:
    """Recompute `part`'s blocks in backward, as `policy` says."""
    other = framework(policy)
    if other is not None:
        other.apply(part, precision, device_type)
        return
    contexts = {}
    if policy == "selective":
        contexts["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _kept())
    for name in part.blocks:
        if recomputes(policy, part.model.blocks.index(name)):
            block = part.module.get_submodule(name)
            # Replacing `forward`, not the module, leaves parameter names and the hooks of data strategies as they are.
            # Nothing in the models is random (dropout 0), so no generator state needs to be kept.
            block.forward = functools.partial(
                checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, **contexts
            )


def _kept() -> list[OpOverload]:
    return [getattr(torch.ops.aten, name).default for name in EXPENSIVE if hasattr(torch.ops.aten, name)]
