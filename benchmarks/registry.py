"""The registry is the folder: an implementation is found by its file's name and imported on demand.

`names` reads folders and imports nothing, so it serves the parent process, which has no torch.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from benchmarks.errors import unknown

AXES = {"pp": "pipeline_parallel", "tp": "tensor_parallel", "dp": "data_parallel"}
"""Each axis of a layout in the order in which it is written, with the folder that implements it."""


@cache
def names(folder: str) -> tuple[str, ...]:
    """The implementations in a folder of this package, by file name; files that start with `_` are helpers."""
    files = (Path(__file__).parent / folder).glob("*.py")
    return tuple(sorted(f.stem.replace("_", "-") for f in files if not f.stem.startswith("_")))


def module(folder: str, name: str) -> str:
    """The module that the implementation `name` in `folder` is."""
    return f"{__package__}.{folder}.{name.replace('-', '_')}"


def load(folder: str, name: str) -> ModuleType:
    """Import the implementation `name` from `folder`.

    Raises:
        UsageError: no such file; the message names the nearest one.
        ImportError: the file needs a package that is not installed.
    """
    if name not in names(folder):
        raise unknown(folder.replace("_", " ") + " implementation", name, names(folder))
    return importlib.import_module(module(folder, name))
