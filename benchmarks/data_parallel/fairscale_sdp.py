"""ZeRO stage 2 by FairScale: ShardedDataParallel reduces every gradient to its owner alone, and OSS updates there.

As backward makes a gradient it is sent to the rank that owns its parameter, and freed on all others; small gradients lie
together in one bucket for each owner, which stays. With several microbatches whole gradients add up on every rank until
the last backward. Owners then update, and broadcast what they own. FairScale is no longer maintained.

Memory of a rank (ZeRO, section 5, in fp32 with AdamW, for P parameters on N ranks, dealt out evenly): 4 P parameters + 4 P / N
gradients + 8 P / N state; buckets hold up to `reduce_buffer_elements` gradients of each owner besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fairscale.nn.data_parallel import ShardedDataParallel
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import (
    DTENSOR,
    NESTS_BACKWARD,
    SEPARATE_STAGES,
    SPLITS_BACKWARD,
    TIED_ACROSS_STAGES,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    Part,
    Placement,
    Shares,
)
from benchmarks.data_parallel._no_sync import NoSyncReplica
from benchmarks.data_parallel._oss import KeepsGradients, sharded
from benchmarks.initialize import materialize
from benchmarks.replica import GradientNorm, GradientSums, LocalReplica
from benchmarks.site import Site
from benchmarks.world import World


class _Several:
    """The optimizers of several parts as one."""

    def __init__(self, each: list[KeepsGradients]):
        self.each = each

    def step(self) -> None:
        for optimizer in self.each:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.each:
            optimizer.zero_grad()


@dataclass(frozen=True, kw_only=True)
class _OfParts(OptimizerRecipe):
    """One optimizer for each part: ShardedDataParallel takes all parameters of its optimizer for those of its module."""

    parts: list[Part]

    def build(self, parameters: Iterable[nn.Parameter]) -> _Several:  # type: ignore[override]
        return _Several([OptimizerRecipe.build(self, part.module.parameters()) for part in self.parts])


class _Replica(NoSyncReplica):
    """Sums, norm and clipping are the owners' affair: only they hold a gradient when backward is done."""

    modules: list[ShardedDataParallel]

    def __init__(self, assembly: Assembly, optimizer: OptimizerRecipe, world: World, buffer_elements: int):
        for part in assembly.parts:
            materialize(part, world)
        recipe = sharded(optimizer, world, KeepsGradients)
        super().__init__(
            assembly, _OfParts(kind=recipe.kind, settings=recipe.settings, clip=recipe.clip, parts=assembly.parts), world
        )
        self.modules = [
            ShardedDataParallel(
                part.module,
                sharded_by,
                process_group=world.group("dp"),
                broadcast_buffers=False,
                sync_models_at_startup=False,
                reduce_buffer_size=buffer_elements,
                auto_refresh_trainable=False,
            )
            for part, sharded_by in zip(assembly.parts, self._optimizer.each, strict=True)
        ]
        self._all = self._held
        owner = {p: rank for optimizer in self._optimizer.each for p, rank in optimizer._param_to_rank.items()}
        self._held = [entry for entry in self._all if owner[entry.parameter] == world.coordinate("dp")]
        self._sums = GradientSums(self._held, world)
        self._norm = GradientNorm(self._held, world, frozenset({"dp"}))

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for entry in self._all:
            yield entry.placement, lambda p=entry.parameter: p.detach()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of `fairscale.nn.data_parallel.ShardedDataParallel`."""

    reduce_buffer_elements: int = 2**23
    """Up to how many elements of small gradients lie in a bucket for each owner; 0: each is reduced by itself."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        return _Replica(assembly, optimizer, world, self.reduce_buffer_elements)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        part = 1 / cell.layout.degree("dp")
        # Buckets are as large as the model where they may be, and with several microbatches gradients add up whole.
        whole = self.reduce_buffer_elements or cell.batch.microbatches > 1
        return Shares(gradients=1.0 if whole else part, optimizer_state=part)

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if NESTS_BACKWARD in traits:
            return (
                "ShardedDataParallel reduces what its buckets hold at the end of any backward, that of a stage which is run "
                "again inside of another included (_flush_reduce_calls in fairscale/nn/data_parallel/sharded_ddp.py), and "
                "gradients come out wrong without a word: let the pipeline checkpoint nothing, or use OSS whose ranks hold all "
                "gradients"
            )
        if cell.checkpointing == "fairscale" and SEPARATE_STAGES in traits:
            return (
                "ShardedDataParallel reduces what its buckets hold at the end of the backward in which the first gradient came "
                "(_flush_reduce_calls in fairscale/nn/data_parallel/sharded_ddp.py), which on a stage of blocks alone is that "
                "inside of a checkpointed block, and gradients come out wrong without a word: choose checkpointing full"
            )
        if SPLITS_BACKWARD in traits:
            return (
                "a schedule that computes weight gradients apart writes them without the hooks by which ShardedDataParallel "
                "reduces (torch/distributed/pipelining/_backward.py): choose a schedule with whole backwards"
            )
        if TIED_ACROSS_STAGES in traits:
            return (
                "the two copies of a weight that stages share have owners at different places of their stages (OSS.partition_"
                "parameters), which alone hold a gradient, so that these cannot be summed: choose a data axis whose ranks hold "
                "all gradients"
            )
        if DTENSOR in traits:
            return (
                "ShardedDataParallel takes gradients by autograd hooks of plain parameters (_setup_backward_hooks) and lays "
                "them into flat buckets, which DTensors are not: use plain tensors"
            )
        if cell.offload in ("optimizer", "parameters"):
            return (
                "ShardedDataParallel asks its optimizer who owns the parameters on the device, and an optimizer on the host "
                "has copies of them: use offload=none"
            )
        return None
