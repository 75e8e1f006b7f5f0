"""Imported once by the server that children are forked from, so that they start with torch loaded.

Nothing here may start autograd, a thread pool or a device: they do not survive a fork. What to import besides torch and
the harness is read from an environment variable: modules, and what such a module names in a list of its own, `PRELOAD`,
as worth having before the fork (for example a framework's slowest import).
"""

from __future__ import annotations

import importlib
import os
import signal

from benchmarks import models, registry
from harness.launch.processes import die_with_parent

VARIABLE = "HPBENCH_PRELOAD"
ALWAYS = (
    "torch._dynamo",  # every optimizer imports it in its first step
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "harness.worker",
    "harness.legality",
)


def preload(names: list[str]) -> None:
    """Import modules; one that fails is left to the child that needs it, which can say so."""
    for name in names:
        try:
            module = importlib.import_module(name)
            for further in getattr(module, "PRELOAD", ()):
                importlib.import_module(further)
        except Exception:
            continue


if VARIABLE in os.environ:
    # This is the server: it must not outlive the harness, nor die of the interrupt that the harness handles.
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Frameworks greet whoever imports them. What fails here fails again in the child that needs it, which has a log.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    implementations = os.environ.pop(VARIABLE).split()
    # Those of another library take seconds to import, and few runs have them.
    ours = (name for name in registry.names("models") if not name.startswith(models.LIBRARY))
    preload([*ALWAYS, *(f"benchmarks.models.{name}" for name in ours)])
    if not importlib.import_module("torch").cuda.is_available():
        # Beside CUDA devices a framework may start CUDA while it is imported, and the children of a process that has cannot
        # use it. Their cells then import it themselves, seconds later.
        preload(implementations)
    models.names()  # reads the files of sizes, which are then there for every child
