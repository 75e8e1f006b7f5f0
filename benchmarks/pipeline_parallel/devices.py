"""Hand-written model parallelism in one process: each device holds a run of layers, activations move with `.to(device)`.

This is the oldest way to train a model that one device cannot hold. One device works at a time, so N devices are no
faster than one; they only hold more. With several microbatches nothing overlaps either, as each runs to its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import SEVERAL_DEVICES, Assembly, Chain, Model, Part, PipelineParallel, Replica
from benchmarks.initialize import chain, placements
from benchmarks.pipeline_parallel._stages import tied_across, tied_stages
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
        # Stage by stage, so that a weight tied across two devices becomes two copies; the update sums their gradients.
        chains = [chain(model, units) for units in stages]
        module = SpreadChain({name: unit for c in chains for name, unit in c.named_children()}, devices)
        where = {name: placement for c in chains for name, placement in placements(model, c).items()}
        for copy in tied_stages(model, stages):
            where[copy] = dataclasses.replace(where[copy], counted=False)
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
