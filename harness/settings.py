"""What is pinned in every process that computes, so that no cell owes its figures to a switch that another had not."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Any

import torch

SWITCHES = ("NCCL_", "TORCH_NCCL_", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS")
"""Environment variables that change how torch and NCCL work; they are left as they are and recorded."""


def limit_memory(size: int) -> None:
    """Let this process ask for so many bytes more than it holds now, and then run out of memory as a device does.

    Args:
        size: 0: no limit.
    """
    if size:
        held = int(re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
        resource.setrlimit(resource.RLIMIT_DATA, (held + size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def pin(*, threads: int, seed: int) -> dict[str, Any]:
    """Pin what torch would otherwise choose by itself, and return it for `environment.json`.

    Args:
        threads: of each process for operations on the CPU.
        seed: of torch's own generators; weights and batches do not come from them.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    # A name for fp32 that means fp32: TF32 keeps 10 bits of the mantissa.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # Trying kernels out while steps are timed would make the first ones slow and the choice differ from run to run.
    torch.backends.cudnn.benchmark = False
    # Flash, then memory-efficient, then plain attention: what each shape and dtype allows, the same on every layout.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return {
        "threads": threads,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SWITCHES)},
    }
