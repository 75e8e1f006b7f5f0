"""Fully sharded data parallelism as FairScale first had it (`FullyShardedDataParallel`), from which torch's FSDP1 was made:
ZeRO stage 3. FairScale is no longer maintained.

The parameters of a unit are flattened into one tensor, of which each rank keeps 1/N; it is all-gathered before the unit runs
and freed after it, and gradients are reduce-scattered. With several microbatches whole gradients add up on every rank until
the last backward.

By default units are gathered in fp32 and computed in 16 bits by autocast, as under every other strategy. Its own mixed
precision (`mixed`) gathers them in 16 bits, half the bytes, embedding and head among them; every microbatch is then reduced at
once, as whole gradients would add up in 16 bits. Its `clip_grad_norm_` wants CUDA, and norm and clipping are ours.

Memory of a rank (ZeRO, section 5, in fp32 with AdamW, for P parameters on N ranks): 4 P / N parameters + 4 P / N gradients
+ 8 P / N state, and the unit that is gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from fairscale.nn.data_parallel import FullyShardedDataParallel
from fairscale.nn.data_parallel.fully_sharded_data_parallel import ProcessGroupName
from torch import Tensor, nn

from benchmarks.cell import Cell
from benchmarks.contract import DTENSOR, Assembly, DataParallel, OptimizerRecipe, Part, Placement, R, Shares
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
    reduces_always: bool
    """Whether each microbatch is reduced, and what adds up is a rank's share of gradients in fp32."""

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        return super().backward(part, run, kind=kind, last=last or self.reduces_always)

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
    mixed: Literal["none", "bf16", "fp16"] = "none"
    """Gather units in this dtype, which must be that of the precision (`mixed_precision`, `compute_dtype`)."""
    fp32_reduce_scatter: bool = True
    """With `mixed`: cast gradients to fp32 before they are reduced. FairScale's own default is to reduce them in 16 bits."""

    offloads = frozenset({"parameters"})

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> LocalReplica:
        shims = without_cuda()
        options = self._options(assembly, cell, world)
        device = torch.device("cpu") if options["cpu_offload"] else None
        modules, parameters, places = [], [], []
        for part in assembly.parts:
            places.append(_places(part))
            before = held(part)
            for name in part.blocks:
                block = part.module.get_submodule(name)
                materialize(part, world, module=block, device=device)
                part.module.set_submodule(name, FullyShardedDataParallel(block, **options))
            materialize(part, world, device=device)
            modules.append(FullyShardedDataParallel(part.module, **options))
            parameters += _flat(modules[-1]) if self.flatten else before
        spread = frozenset({"dp"})
        replica = _Replica(assembly, optimizer, world, modules=modules, parameters=parameters, spread=spread)
        replica.places, replica.reduces_always = places, self.mixed != "none"
        replica.caveats = shims
        return replica

    def _options(self, assembly: Assembly, cell: Cell, world: World) -> dict[str, Any]:
        # The same for all units: the outermost makes the streams of all, and knows of its own options alone what they wait for.
        return {
            "process_group": world.group("dp"),
            "process_group_reduce_scatter": ProcessGroupName.default,
            "reshard_after_forward": self.reshard,
            "flatten_parameters": self.flatten,
            "bucket_cap_mb": self.bucket_mb,
            "compute_device": world.device,
            "mixed_precision": self.mixed != "none",
            "compute_dtype": assembly.precision.compute if self.mixed != "none" else torch.float32,
            "fp32_reduce_scatter": self.mixed != "none" and self.fp32_reduce_scatter,
            "cpu_offload": cell.offload == "parameters",
        }

    def dtypes(self) -> Mapping[str, str]:
        if self.mixed == "none":
            return {}
        # Parameters of a flattened unit are views of what was gathered last, beside the share of the flat one.
        gathered = {"parameters": f"{self.mixed}+fp32"} if self.flatten else {}
        return gathered if self.fp32_reduce_scatter else {**gathered, "reduction": self.mixed}

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        found = flat_shares(cell, reshard=self.reshard)
        return found._replace(gradients=1 / cell.layout.degree("dp")) if self.mixed != "none" else found

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
        if self.mixed not in ("none", cell.precision):
            return f"FairScale would compute in {self.mixed}, and the precision is {cell.precision}: name that, or none"
        if self.mixed == "none" and not self.fp32_reduce_scatter:
            return (
                "gradients are fp32 as long as units are gathered in it, and there is nothing to cast: leave "
                "fp32_reduce_scatter=false out, or name a 16-bit dtype in mixed"
            )
        if cell.offload == "parameters" and site.kind != "cuda":
            return (
                "FairScale pins what it keeps on the host for copies to a CUDA device (_init_param_attributes in fairscale/nn/"
                "data_parallel/fully_sharded_data_parallel.py): use a CUDA device, or offload=none"
            )
        if cell.offload == "parameters" and cell.batch.microbatches > 1:
            return (
                "FairScale drops gradients that are on another device than their parameters before each backward "
                "(_prep_grads_for_backward), and with them those of earlier microbatches, without a word: use one microbatch"
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
