"""The machine and its software: what a run folder says of where it was made, and the site that cells are judged on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.site import Site
from harness.launch.entry import resolve
from harness.launch.local import ROOT, Launcher

FRAMEWORKS = ("torch", "deepspeed", "fairscale", "transformers", "megatron-core")
"""Distributions that strategies are built on."""
LIBRARIES = ("numpy", "pydantic")
DETECTION_LIMIT_SECONDS = 120.0
_NOT_IDENTITY = ("suite_commit", "host", "site", "memory_bytes")


def detect(launcher: Launcher) -> tuple[Site, dict[str, Any]]:
    """The live site and its environment, with torch asked in a child process.

    Returns:
        The site, and what goes into `environment.json`: facts, and `id`, a hash of those that figures may depend on.

    Raises:
        harness.launch.local.ChildError: torch cannot be loaded.
    """
    found = launcher.call("harness.environment:inspect", {}, limit=DETECTION_LIMIT_SECONDS)
    devices = found["devices"]
    memory = psutil.virtual_memory().total
    site = Site(
        kind=devices[0]["kind"] if devices else "cpu",
        count=len(devices) or cores(),
        memory_bytes=devices[0]["memory_bytes"] if devices else memory,
        frameworks=versions(FRAMEWORKS),
    )
    facts = {
        "site": site.model_dump(mode="json"),
        "host": platform.node(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": cores(),
        "memory_bytes": memory,
        "governor": governor(),
        "libraries": versions(LIBRARIES),
        "suite_commit": suite_commit(),
        **found,
    }
    return site, {"id": environment_id(facts), **facts}


def inspect(payload: dict[str, Any]) -> dict[str, Any]:
    """What only a process with torch can tell. Runs in a child."""
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(i) for i in range(count)]
    return {
        "devices": [{"kind": "cuda", "name": p.name, "memory_bytes": p.total_memory} for p in properties],
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if count else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if count and dist.is_nccl_available() else None,
        "gloo": dist.is_gloo_available(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_git": torch.version.git_version,
        "pinned": resolve("harness.settings:pin")(threads=1, seed=0),
    }


def environment_id(facts: dict[str, Any]) -> str:
    """Twelve hexadecimal digits: equal where figures may be compared. The suite's commit and the host's name do not count."""
    identity = {name: value for name, value in facts.items() if name not in _NOT_IDENTITY}
    # Kernels of one machine differ in how many pages they keep for themselves.
    identity |= {"memory_gib": round(facts["memory_bytes"] / 2**30), "frameworks": facts["site"]["frameworks"]}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Name -> version of those that are installed; nothing is imported."""
    found = {}
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def governor() -> str | None:
    """How the first core's clock is governed, where the system tells."""
    with contextlib.suppress(OSError):
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    return None


def suite_commit() -> str | None:
    """The commit of this suite, with `+` behind it where files differ; None outside a git checkout."""
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return commit + ("+" if changed else "")


def _driver() -> str | None:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
