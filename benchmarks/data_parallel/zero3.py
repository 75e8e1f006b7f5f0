"""ZeRO stage 3 by DeepSpeed: every rank holds its share of parameters, gradients and optimizer state alone (Rajbhandari et al.,
ZeRO, 2020).

Before a layer runs, hooks all-gather its parameters, and they are freed after it; in the first step DeepSpeed learns the
order, and from then on it gathers ahead. Gradients are reduced to the ranks whose share they are in, in every backward.
Where FSDP gathers block by block, DeepSpeed gathers layer by layer, in buckets of `prefetch_elements`.

`hierarchical` is the hpZ of ZeRO++ (Wang et al., 2023): after forward a second copy of the parameters is kept, cut over groups
of neighbours, from which backward gathers.

Memory of a rank (section 5 of the paper, in fp32 with AdamW, for P parameters on N ranks): 4 P / N parameters + 4 P / N
gradients + 8 P / N state; and DeepSpeed updates a flat copy of its share, 4 P / N more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import deepspeed
from deepspeed.utils.groups import _get_zero_param_intra_parallel_group
from torch import Tensor

from benchmarks.cell import Cell
from benchmarks.contract import DTENSOR, Assembly, DataParallel, OptimizerRecipe, Placement, Replica, Shares
from benchmarks.data_parallel import _deepspeed as shared
from benchmarks.initialize import materialize
from benchmarks.replica import held
from benchmarks.site import Site
from benchmarks.world import World

PRELOAD = shared.PRELOAD


class _Replica(shared.EngineReplica):
    """Its parameters are whole only while they are asked for."""

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for entry in self._held:
            with deepspeed.zero.GatheredParameters([entry.parameter]):
                yield entry.placement, lambda p=entry.parameter: p.detach().clone()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of DeepSpeed's `zero_optimization`."""

    offloads = frozenset({"optimizer", "parameters"})

    bucket_elements: int = shared.OWN_DEFAULT_BUCKET
    """Gradient elements that are reduced together (`reduce_bucket_size`)."""
    prefetch_elements: int = 50_000_000
    """Parameter elements that are gathered ahead of their use (`stage3_prefetch_bucket_size`)."""
    persistence_elements: int = 0
    """Parameters of fewer elements stay whole on every rank. By default none does, as the paper has it; DeepSpeed's own
    default, 100000, would leave the whole of a small model."""
    overlap_comm: bool = True
    """Reduce and gather on streams of their own beside the computation."""
    contiguous_gradients: bool = True
    """Copy gradients into the bucket as they are made, so that memory does not fall into pieces."""
    hierarchical: int = 1
    """In groups of how many neighbours a second copy of the parameters is kept for backward (`zero_hpz_partition_size`); 1:
    there is none."""

    def configuration(self, cell: Cell) -> dict[str, Any]:
        return shared.configuration(
            cell,
            3,
            overlap_comm=self.overlap_comm,
            contiguous_gradients=self.contiguous_gradients,
            reduce_bucket_size=self.bucket_elements,
            stage3_prefetch_bucket_size=self.prefetch_elements,
            stage3_param_persistence_threshold=self.persistence_elements,
            zero_hpz_partition_size=self.hierarchical,
        )

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> Replica:
        (part,) = assembly.parts
        config = shared.ready(self.configuration(cell), world)
        parameters = shared.mark(held(part), world)
        # One block is made real at a time, and cut at once, so that no rank holds the model whole.
        for module in [*(part.module.get_submodule(name) for name in part.blocks), part.module]:
            materialize(part, world, module=module)
            deepspeed.zero.Init(
                module=module,
                data_parallel_group=world.group("dp"),
                config_dict_or_path=config,
                zero_param_parallel_group=_get_zero_param_intra_parallel_group(),  # each call would make it anew
            )
        inner = optimizer.build([entry.parameter for entry in parameters])
        return _Replica(assembly, parameters, shared.start(part.module, inner, config, world), world)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        part = 1 / cell.layout.degree("dp")
        second = 1 / self.hierarchical if self.hierarchical > 1 else 0.0
        return Shares(parameters=part + second, gradients=2 * part, optimizer_state=part, master=part, gathered="blocks")

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if DTENSOR in traits:
            return (
                "ZeRO-3 frees and refills the storage of plain parameters (deepspeed/runtime/zero/partition_parameters.py) "
                "and knows nothing of DTensors: use plain tensors, or FSDP2"
            )
        degree, group = cell.layout.degree("dp"), self.hierarchical
        if group > 1 and (degree % group or group >= degree or cell.layout.devices > degree):
            return (
                f"a second copy over groups of {group} needs more data ranks than that, a multiple of it, and no other axis, "
                f"as DeepSpeed makes its groups of neighbours in the whole world; here are {cell.layout}: use a divisor of the "
                "data degree, or hierarchical=1"
            )
        return shared.objection_of_stages(3, cell, site, traits)
