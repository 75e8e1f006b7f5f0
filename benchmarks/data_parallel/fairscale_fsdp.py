"""Fully sharded data parallelism as FairScale first had it (`FullyShardedDataParallel`), from which torch's FSDP1 was made:
ZeRO stage 3. FairScale is no longer maintained.

The parameters of a unit are flattened into one tensor, of which each rank keeps 1/N; it is all-gathered before the unit runs
and freed after it, and gradients are reduce-scattered. With several microbatches whole gradients add up on every rank until
the last backward.

Its own mixed precision computes in fp16 alone and without autocast; here units are gathered in fp32 and computed in 16 bits by
autocast, as under every other strategy. Its `clip_grad_norm_` wants CUDA, and norm and clipping are ours.

Memory of a rank (ZeRO, section 5, in fp32 with AdamW, for P parameters on N ranks): 4 P / N parameters + 4 P / N gradients
+ 8 P / N state, and the unit that is gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairscale.nn.data_parallel import FullyShardedDataParallel
from fairscale.nn.data_parallel.fully_sharded_data_parallel import ProcessGroupName
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import DTENSOR, Assembly, DataParallel, OptimizerRecipe, Part, Placement, Shares
from benchmarks.data_parallel._fairscale_on_cpu import without_cuda
from benchmarks.data_parallel._flat_units import flat_problem, flat_shares
from benchmarks.data_parallel._no_sync import NoSyncReplica
from benchmarks.initialize import materialize
from benchmarks.replica import Held, LocalReplica, held
from benchmarks.site import Site
from benchmarks.world import World

Place = tuple[nn.Module, str, Placement]
"""Where a parameter of the model is found when it is whole: module, attribute, and where it comes from."""


class _Replica(NoSyncReplica):
    """Finds its parameters again when they are whole."""

    modules: list[FullyShardedDataParallel]
    places: list[list[Place]]

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for module, places in zip(self.modules, self.places, strict=True):
            with module.summon_full_params(volatile=True):
                for owner, attribute, placement in places:
                    yield placement, lambda owner=owner, attribute=attribute: getattr(owner, attribute).detach().clone()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `fairscale.nn.data_parallel.FullyShardedDataParallel`."""

    reshard: bool = True
    """Free a unit's parameters after its forward and gather them again in backward (`reshard_after_forward`)."""
    flatten: bool = True
    """Flatten the parameters of a unit into one tensor (`flatten_parameters`); off: cut each by itself."""
    bucket_mb: int = 25
    """Mebibytes of small gradients that are reduced together."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        shims = without_cuda()
        modules, parameters, places = [], [], []
        for part in assembly.parts:
            places.append(_places(part))
            before = held(part)
            for name in part.blocks:
                block = part.module.get_submodule(name)
                materialize(part, world, module=block)
                part.module.set_submodule(name, self._wrapped(block, world))
            materialize(part, world)
            modules.append(self._wrapped(part.module, world))
            parameters += _flat(modules[-1]) if self.flatten else before
        spread = frozenset({"dp"})
        replica = _Replica(assembly, optimizer, world, modules=modules, parameters=parameters, spread=spread)
        replica.places = places
        replica.caveats = shims
        return replica

    def _wrapped(self, module: nn.Module, world: World) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(
            module,
            process_group=world.group("dp"),
            process_group_reduce_scatter=ProcessGroupName.default,
            reshard_after_forward=self.reshard,
            flatten_parameters=self.flatten,
            bucket_cap_mb=self.bucket_mb,
            compute_device=world.device,
        )

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        return flat_shares(cell, reshard=self.reshard)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if DTENSOR in traits:
            return (
                "FairScale's wrapper frees and refills the storage of plain parameters, and knows nothing of DTensors, which "
                "are younger: use plain tensors, or FSDP2"
            )
        if self.flatten and cell.layout.degree("tp") > 1:
            return (
                "FairScale flattens the parameters that tensor parallelism cuts and those that it copies into one, in which a "
                "gradient norm cannot tell them apart: use flatten=false"
            )
        return flat_problem("FairScale", "_post_backward_hook", cell, site, traits)


def _places(part: Part) -> list[Place]:
    """Where each parameter of a part lies, while it is still itself."""
    found = []
    for name, _ in part.module.named_parameters():
        owner, _, attribute = name.rpartition(".")
        found.append((part.module.get_submodule(owner), attribute, part.placements[name]))
    return found


def _flat(module: FullyShardedDataParallel) -> list[Held]:
    """The flattened tensors of all units, each a part of the model of its own."""
    named = module.named_parameters()
    return [Held(parameter=p, placement=Placement(name=name, shape=tuple(p.shape))) for name, p in named]
