"""Compilation: torch.compile makes one program of many operations, and kernels that do several of them at once.

`block` compiles each block by itself: blocks are alike, so that one program serves all, and what data strategies hook to a
block stays outside. `model` compiles all that a pipeline stage holds as one.
"""

from __future__ import annotations

import torch

from benchmarks.cell import Compile
from benchmarks.contract import Part


def apply_compile(part: Part, scope: Compile) -> None:
    """Compile `part` or its blocks, as `scope` says. Programs are made when they first run, which takes seconds to minutes."""
    modules = {"none": [], "block": [part.module.get_submodule(name) for name in part.blocks], "model": [part.module]}
    for module in modules[scope]:
        # Every microbatch has the same shape.
        module.forward = torch.compile(module.forward, dynamic=False)
