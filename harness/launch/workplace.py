"""The one folder below the system's temporary one that everything temporary of this process lies in, so that it can go as a
whole: the server that children are forked from removes it when this process ends, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "hpbench-"
_LOCK = "in-use"


@functools.cache
def workplace() -> Path:
    """This process's folder; made, and those of processes that were killed together with their server removed, once."""
    for stale in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = _locked(stale)
            shutil.rmtree(stale, ignore_errors=True)
            os.close(descriptor)
    new = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}"))
    (new / _LOCK).touch()
    _locked(new)  # until this process ends, which closes the descriptor
    return new.rename(new.with_name(new.name.removeprefix("new-")))


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock.

    Raises:
        OSError: another process holds it, or it is no such folder.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
