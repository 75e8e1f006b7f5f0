"""What a launch may leave that does not end with its processes: segments of shared memory, and memory of GPUs that the
driver has not freed yet. Temporary files lie in a folder of the launch, and ports close with their processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

SHARED = Path("/dev/shm")
_LIBRARIES = re.compile(r"torch_|nccl-|psm_|sem\.|cuda\.shm\.|pymp-|__KMP_REGISTERED_LIB_")
"""How segments of libraries that ranks use begin; of other names nobody can say that they may go."""
GPU_PATIENCE_SECONDS = 10.0
GPU_SLACK_BYTES = 64 * 2**20
"""By which other programs may make the memory in use differ."""


class Leftovers:
    """What there is before a launch, to be compared with what there is after it."""

    def __init__(self) -> None:
        self._segments = _segments()
        self._gpu_bytes = _gpu_bytes()

    def found(self) -> list[str]:
        """What a launch that has ended left, each in a few words; segments of known libraries that nobody uses are removed."""
        found = []
        new = _segments() - self._segments
        for name in sorted(new - (_in_use(new) if new else set())):
            if _LIBRARIES.match(name):
                with contextlib.suppress(OSError):
                    (SHARED / name).unlink(missing_ok=True)  # another run on this machine may have seen it, too
                    found.append(f"shared memory {name}, removed")
                    continue
            found.append(f"shared memory {name}, which stays")
        return found + self._gpu_memory()

    def _gpu_memory(self) -> list[str]:
        until = time.monotonic() + GPU_PATIENCE_SECONDS
        while True:
            more = [now - was for now, was in zip(_gpu_bytes(), self._gpu_bytes, strict=False)]
            if max(more, default=0) <= GPU_SLACK_BYTES or time.monotonic() > until:
                break
            time.sleep(0.2)
        return [f"{size / 2**20:.0f} MiB in use on GPU {n}" for n, size in enumerate(more) if size > GPU_SLACK_BYTES]


def _segments() -> set[str]:
    """Names of this user's segments."""
    with contextlib.suppress(OSError), os.scandir(SHARED) as entries:
        return {entry.name for entry in entries if entry.stat(follow_symlinks=False).st_uid == os.getuid()}
    return set()


def _in_use(names: set[str]) -> set[str]:
    """Those that a live process has mapped or open."""
    used = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            held = (process / "maps").read_text(errors="replace")
            held += "\n".join(os.readlink(link) + "\n" for link in (process / "fd").iterdir())
            used |= {name for name in names if f"{SHARED / name}\n" in held}
    return used


def _gpu_bytes() -> list[int]:
    """Memory in use on each GPU, by index; empty where there is no driver."""
    if not Path("/proc/driver/nvidia/gpus").exists() or shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return [int(line) * 2**20 for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
