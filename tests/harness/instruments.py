"""Instruments of the tests of cells: each is called with the engine, the world and the cell after the engine is built."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from benchmarks.cell import Cell
from benchmarks.contract import Engine
from benchmarks.world import World

TIMED_ONLY = 10
"""Steps (observed and warm-up) that pass before a fault of the timed steps begins."""


def louder(engine: Engine, world: World, cell: Cell) -> None:
    """One weight's gradient times 1.1 on the last rank."""
    if world.rank == world.size - 1:
        engine.parts[0].module.get_parameter("block1.mlp_norm.weight").register_hook(lambda g: g * 1.1)


def raising(engine: Engine, world: World, cell: Cell) -> None:
    """The last rank fails in its first step."""
    if world.rank == world.size - 1:
        engine.step = _fail  # type: ignore[method-assign]


def _fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("the network cable is out")


def hanging(engine: Engine, world: World, cell: Cell) -> None:
    """The last rank stops in its first step."""
    if world.rank == world.size - 1:
        engine.step = lambda *_, **__: time.sleep(600)  # type: ignore[assignment, method-assign]


def greedy(engine: Engine, world: World, cell: Cell) -> None:
    """The last rank needs more memory than it may have."""
    if world.rank == world.size - 1:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
        torch.empty(2**32)


def vanishing(engine: Engine, world: World, cell: Cell) -> None:
    """The last rank ends without a word."""
    if world.rank == world.size - 1:
        os._exit(0)


def lossless(engine: Engine, world: World, cell: Cell) -> None:
    """Every loss is no number, though training is right."""
    step = engine.step
    engine.step = lambda *a, **k: step(*a, **k)._replace(loss=torch.tensor(float("nan")))  # type: ignore[method-assign]


def asleep_in_backward(engine: Engine, world: World, cell: Cell) -> None:
    """Rank 1 sleeps 50 ms inside the backward of every other step."""
    if world.rank != 1:
        return
    parameter = engine.parts[0].module.get_parameter("head.norm.weight")
    calls = [0]

    def sleep(gradient: torch.Tensor) -> None:
        calls[0] += 1
        if calls[0] % 2:
            until = time.perf_counter() + 0.05
            time.sleep(0.04)
            while time.perf_counter() < until:  # a sleep alone wakes late on a busy machine
                pass

    parameter.register_hook(sleep)
