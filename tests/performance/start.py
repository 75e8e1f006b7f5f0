"""How soon the ranks of a cell stand ready, forked from a loaded server and as fresh interpreters, as a ratio.

    python tests/performance/start.py [--pairs 10]

Ready means that every rank has torch and the worker loaded and has joined the process group. Both ways alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cell import Cell
from harness.launch.local import ROOT, Launcher

CELL = Cell(layout="dp=2:ddp", processes=2, devices=2)


def join(payload: dict[str, Any], seat: Any) -> dict[str, float]:
    """One forked rank: when it had joined, on the clock that all processes share."""
    return {"joined": _join(seat.rank, seat.size, seat.rendezvous)}


def _join(rank: int, size: int, rendezvous: Path) -> float:
    import torch

    import harness.worker  # noqa: F401  what a rank needs
    from benchmarks.world import World

    world = World.start(CELL, rank=rank, size=size, rendezvous=rendezvous, device_kind="cpu")
    torch.distributed.barrier()
    joined = time.monotonic()
    world.close()
    return joined


def forked(launcher: Launcher) -> float:
    """Seconds until the last rank of a forked cell has joined."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        outcome = launcher.run("tests.performance.start:join", {}, processes=2, log_folder=Path(folder), limits={"build": 60})
        assert outcome.failure is None, outcome.failure
    return max(answer["joined"] for answer in outcome.answers) - start


def fresh() -> float:
    """Seconds until the last of two fresh interpreters has joined."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        start = time.monotonic()
        command = [sys.executable, "-m", "tests.performance.start", "--rendezvous", f"{folder}/rendezvous", "--rank"]
        ranks = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, text=True) for rank in range(2)
        ]
        return max(json.loads(process.communicate()[0])["joined"] for process in ranks) - start


def main() -> None:
    """Print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        print(json.dumps({"joined": _join(arguments.rank, 2, arguments.rendezvous)}))
        return
    with Launcher() as launcher:
        forked(launcher)  # starts the server
        pairs = np.array([(forked(launcher), fresh()) for _ in range(arguments.pairs)])
    ratio = np.median(pairs[:, 1] / pairs[:, 0])
    first, second = np.median(pairs, axis=0)
    print(f"a cell of two processes stands ready in {first:.2f} s forked, {second:.2f} s as fresh interpreters (medians)")
    print(f"fresh / forked = {ratio:.1f}, median of {len(pairs)} alternating pairs")


if __name__ == "__main__":
    main()
