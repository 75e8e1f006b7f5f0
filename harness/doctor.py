"""`hpbench doctor`: devices, frameworks and versions, and what to do about what is missing. Imports no torch."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from harness.environment import cores, detect, processor, versions
from harness.launch.local import ChildError, Launcher
from harness.table import text_table

OPTIONAL = {
    "deepspeed": "the layouts built on it are skipped",
    "fairscale": "the layouts built on it are skipped",
    "transformers": "the models built on it are skipped",
}
"""Frameworks that may be missing -> what follows."""
LEAST_SHARED_MEMORY = 2**30
"""Bytes of /dev/shm below which NCCL and data loaders are known to fail."""

Line = tuple[str, str, str]
"""What was looked at, what was found, and what to do about it (empty: nothing)."""


def examine() -> str:
    """The whole report as text."""
    lines = [("python", f"{platform.python_version()} ({sys.executable})", ""), ("cores", f"{cores()} of {processor()}", "")]
    installed = versions(("torch", *OPTIONAL))
    with Launcher() as launcher:
        try:
            _, found = detect(launcher)
        except ChildError as error:
            found = None
            lines.append(("torch", f"cannot be used: {error}", "install it: pip install 'torch>=2.11'"))
    if found:
        lines += [("torch", _torch(installed["torch"], found), _cuda_advice(found)), ("devices", _devices(found), "")]
        lines.append(("collectives", _collectives(found), ""))
    for name, consequence in OPTIONAL.items():
        advice = "" if name in installed else f"{consequence}; to measure them: pip install {name}"
        lines.append((name, installed.get(name, "missing"), advice))
    lines += [_compiler(), _shared_memory(), _commit(found)]
    table = text_table(("", "found", "what to do"), [line for line in lines if line[1]])
    return f"{table}\n\n{_verdict(found)}"


def _torch(version: str, found: dict[str, Any]) -> str:
    return f"{version}, {'CUDA ' + found['cuda'] if found['cuda'] else 'without CUDA'}"


def _cuda_advice(found: dict[str, Any]) -> str:
    if found["devices"] or not (found["driver"] or Path("/dev/nvidia0").exists()):
        return ""
    if not found["cuda"]:
        return "there is an NVIDIA device, and this torch is built without CUDA: install a torch that has it"
    return "torch cannot use the NVIDIA device: compare the driver with torch's CUDA version, and look at CUDA_VISIBLE_DEVICES"


def _devices(found: dict[str, Any]) -> str:
    names = [f"{d['name']}, {d['memory_bytes'] / 2**30:.0f} GiB" for d in found["devices"]]
    return "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU: cells run on the CPU"


def _collectives(found: dict[str, Any]) -> str:
    return ", ".join(["gloo"] * bool(found["gloo"]) + [f"nccl {found['nccl']}"] * bool(found["nccl"]))


def _compiler() -> Line:
    path = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++") or shutil.which("clang++")
    advice = "no suite needs one now, torch.compile and DeepSpeed's own kernels would: apt-get install g++, or the like"
    return ("C++ compiler", path or "missing", "" if path else advice)


def _shared_memory() -> Line:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return ("/dev/shm", "", "")
    total = shutil.disk_usage(folder).total
    return (
        "/dev/shm",
        f"{total / 2**30:.3g} GiB",
        "small for NCCL: in a container, start it with --shm-size" if total < LEAST_SHARED_MEMORY else "",
    )


def _commit(found: dict[str, Any] | None) -> Line:
    commit = (found or {}).get("suite_commit")
    return ("hpbench", f"commit {commit[:12]}{'+' if commit.endswith('+') else ''}" if commit else "", "")


def _verdict(found: dict[str, Any] | None) -> str:
    if found is None:
        return "nothing can be measured before torch is usable"
    suite = "node" if found["devices"] else "cpu"
    return f"ready; next: hpbench run smoke, then hpbench run {suite}"
