"""Imported once by the server that children are forked from, so that they start with torch loaded.

Nothing here may start autograd, a thread pool or a device: they do not survive a fork. What to import besides torch and
the harness is read from an environment variable: modules, and what such a module names in a list of its own, `PRELOAD`,
as worth having before the fork (for example a framework's slowest import).
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
from typing import NoReturn

from benchmarks import models, registry
from harness.launch.processes import adopt_orphans, below, die_with_parent, kill_all

VARIABLE = "HPBENCH_PRELOAD"
WORKPLACE = "HPBENCH_WORKPLACE"
"""The folder of temporary files that goes when the harness has ended."""
HARNESS = "HPBENCH_HARNESS"
"""The process id of the harness."""
IMPORT_SECONDS = 120
"""How long one module may take, before it is left out."""
ALWAYS = (
    "torch._dynamo",  # every optimizer imports it in its first step
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "harness.worker",
    "harness.legality",
)


def preload(names: list[str]) -> None:
    """Import modules; one that fails or hangs is left to the child that needs it, which can say so."""
    for name in names:
        signal.alarm(IMPORT_SECONDS)
        try:
            module = importlib.import_module(name)
            for further in getattr(module, "PRELOAD", ()):
                importlib.import_module(further)
        except Exception:
            continue
        finally:
            signal.alarm(0)


def _too_slow(*_: object) -> NoReturn:
    raise TimeoutError


def _clean_up(workplace: str) -> NoReturn:
    """What is left to do when the harness has ended, in whatever way: nothing of it stays behind."""
    kill_all(below([os.getpid()]) - {os.getpid()})
    shutil.rmtree(workplace, ignore_errors=True)
    os._exit(0)


if VARIABLE in os.environ:
    # This is the server: it must not outlive the harness, nor die of the interrupt that the harness handles. It adopts what
    # ranks that died have left, and so finds it in the end, even where the harness was killed.
    workplace, harness = os.environ.pop(WORKPLACE), int(os.environ.pop(HARNESS))
    signal.signal(signal.SIGTERM, lambda *_: _clean_up(workplace))
    signal.signal(signal.SIGALRM, _too_slow)
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    if os.getppid() != harness:  # killed before this process could ask to be told
        _clean_up(workplace)
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
