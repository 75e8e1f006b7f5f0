"""Hand-written model parallelism in one process: each device holds a run of layers, activations move with `.to(device)`.

This is the oldest way to train a model that one device cannot hold. One device works at a time, so N devices are no
faster than one; they only hold more. With several microbatches nothing overlaps either, as each runs to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import SEVERAL_DEVICES, Assembly, Chain, Model, Part, PipelineParallel, Replica
from benchmarks.pipeline_parallel._stages import in_one_process, tied_across
from benchmarks.schedule import Accumulate
from benchmarks.site import Site
from benchmarks.stages import spread
from benchmarks.world import World


class SpreadChain(Chain):
    """Units on several devices: each input is moved to where its unit lives."""

    def __init__(self, units: Mapping[str, nn.Module], devices: Mapping[str, torch.device]):
        super().__init__(units)
        self._devices = devices

    def forward(self, x: Tensor) -> Tensor:
        for name, unit in self.named_children():
            x = unit(x.to(self._devices[name]))
        return x


@dataclass(frozen=True)
class Strategy(PipelineParallel):
    """One process for all stages; no knobs."""

    def processes(self, degree: int) -> int:
        return 1

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return tied_across(self, cell, model) | {SEVERAL_DEVICES}

    def split(self, model: Model, cell: Cell, world: World) -> list[Part]:
        stages = spread(self, model, cell)
        devices = {unit: world.devices[index] for index, units in enumerate(stages) for unit in units}
        units, where = in_one_process(model, stages)
        module = SpreadChain(units, devices)
        return [Part(model=model, module=module, index=0, count=1, blocks=model.blocks, placements=where, devices=devices)]

    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> Accumulate:
        return Accumulate(assembly, replica, cell.batch.microbatches)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if cell.layout.degree("tp") > 1:
            return (
                "a tensor parallel group has one process for each of its devices, and here one process drives all stages: "
                "choose a pipeline with a process for each stage"
            )
        return None
