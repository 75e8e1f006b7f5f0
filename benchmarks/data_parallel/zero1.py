"""ZeRO stage 1 by DeepSpeed: every rank holds all parameters and gradients, and the optimizer state of its share alone
(Rajbhandari et al., ZeRO, 2020).

Gradients are averaged over the data ranks, each rank updates its 1/N of the flattened parameters, and the updated shares
are all-gathered. DeepSpeed owns norm, clipping and step; forward and backward are those of the plain module, so that any
schedule can drive them, and the gradients are reduced once at the end, which is stage 1's default (`overlap_comm` false).

Precision is that of every other layout: fp32 parameters and state, autocast in forward. DeepSpeed's own `bf16` and `fp16`
mean something else (16-bit parameters with an fp32 master copy), and its fp16 loss scale is decided by each stage alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import deepspeed
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

from benchmarks.cell import Cell
from benchmarks.contract import (
    DTENSOR,
    SEVERAL_DEVICES,
    SPLITS_BACKWARD,
    Assembly,
    DataParallel,
    OptimizerRecipe,
    Placement,
    R,
    Replica,
    Shares,
    Update,
)
from benchmarks.initialize import materialize
from benchmarks.replica import GradientSums, held
from benchmarks.site import Site
from benchmarks.techniques.precision import LossScaler
from benchmarks.tied import read_through
from benchmarks.world import World

PRELOAD = ("deepspeed.runtime.zero.muon.original_muon",)
"""What `deepspeed.initialize` imports for seconds; worth having before ranks are forked."""


class _ModelParallelUnit:
    """What DeepSpeed asks about the other axes. Its model group is pipeline x tensor, flattened: the ranks over which the
    squares of one gradient norm add up."""

    def __init__(self, world: World):
        world.make_group("model", ("pp", "tp"))
        self._world, self._group = world, world.group("model")

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._group

    def get_model_parallel_world_size(self) -> int:
        return dist.get_world_size(self._group)

    def get_model_parallel_rank(self) -> int:
        return dist.get_rank(self._group)

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._world.group("dp")

    def get_data_parallel_world_size(self) -> int:
        return self._world.degrees["dp"]

    def get_data_parallel_rank(self) -> int:
        return self._world.coordinate("dp")


class _Replica(Replica):
    """One DeepSpeed engine for all parts of this rank."""

    def __init__(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World, bucket_elements: int):
        for part in assembly.parts:
            materialize(part, world)
            if DTENSOR in assembly.traits:
                _use_local_tensors(part.module)
        self._held = [entry for part in assembly.parts for entry in held(part)]
        for entry in self._held:
            # DeepSpeed sums squares over its model group and leaves out what is marked as a copy.
            entry.parameter.model_parallel = "tp" in entry.placement.shards or world.coordinate("tp") == 0
            entry.parameter.ds_pipe_replicated = not entry.placement.counted
        self._sums = GradientSums(self._held, world)
        scale = assembly.precision.loss_scale
        self._scaler = LossScaler(scale, world.device, dist.group.WORLD) if scale else None
        self._engine, *_ = deepspeed.initialize(
            model=nn.ModuleList(part.module for part in assembly.parts),
            optimizer=optimizer.build([entry.parameter for entry in self._held]),
            config=_config(cell, optimizer.clip, bucket_elements, pinned=world.device.type == "cuda"),
            mpu=_ModelParallelUnit(world),
            dist_init_required=False,
        )
        self.modules = [part.module for part in assembly.parts]
        self._clip = optimizer.clip

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss) if self._scaler else loss

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        return run()

    def update(self, *, want_norm: bool) -> Update:
        self._sums.finish()
        if self._scaler:
            overflow = self._scaler.unscale(entry.parameter.grad for entry in self._held)
            self._scaler.adjust(overflow)
            if overflow:
                self._engine.optimizer.zero_grad()
                return Update(None, skipped=True)
        # The way of DeepSpeed's own pipeline engine: reduce what backward left, then step.
        self._engine.optimizer.reduce_gradients(pipeline_parallel=True)
        # By itself DeepSpeed computes the norm in every step, wanted or not.
        self._engine.optimizer.compute_grad_norm = want_norm or self._clip > 0
        self._engine.step()
        # DeepSpeed leaves out the step, and says nothing, where the norm is not finite.
        skipped = bool(self._engine.optimizer.overflow)
        return Update(self._norm() if want_norm and not skipped else None, skipped)

    def _norm(self) -> Tensor:
        """DeepSpeed's global norm, known only after the step."""
        norm = self._engine.get_global_grad_norm()
        device = self._held[0].parameter.device
        return norm.to(device) if isinstance(norm, Tensor) else Tensor([norm]).squeeze().to(device)

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for entry in self._held:
            yield entry.placement, lambda p=entry.parameter: p.detach()


@dataclass(frozen=True)
class Strategy(DataParallel):
    """Options of DeepSpeed's `zero_optimization`."""

    offloads = frozenset({"optimizer"})

    bucket_elements: int = 500_000_000
    """Gradient elements that are reduced together (`reduce_bucket_size`) and parameters gathered together."""

    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> Replica:
        if world.device.type == "cpu":
            # DeepSpeed would compile a shared-memory all-reduce for inference when it first initialises (deepspeed/comm/
            # torch.py, build_shm_op), a minute or two. Training never calls it; marked as incompatible it is left alone.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        return _Replica(assembly, optimizer, cell, world, self.bucket_elements)

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        part = 1 / cell.layout.degree("dp")
        return Shares(optimizer_state=part, master=part)  # DeepSpeed updates a flat copy of its share

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if SEVERAL_DEVICES in traits and site.kind == "cuda":
            return "DeepSpeed moves the whole module to one device: choose a pipeline with a process for each stage"
        if {DTENSOR, SPLITS_BACKWARD} <= traits:
            return (
                "DeepSpeed works on the plain tensors behind DTensor parameters. These become DTensors anew in every "
                "forward (torch.distributed.tensor.parallel.ddp), and a schedule that computes weight gradients apart does "
                "not follow them back (torch/distributed/pipelining/_backward.py): use plain tensors, or whole backwards"
            )
        return None


def _use_local_tensors(module: nn.Module) -> None:
    """Give DeepSpeed the plain local tensors behind DTensor parameters, which it flattens into buffers of its own.

    Hooks make them DTensors for the forward. DDP needs and does the same; this is its own transform.
    """
    read_through(module)  # the transform knows parameters by their first name alone
    _pre_dp_module_transform(module)


def _config(cell: Cell, clip: float, bucket_elements: int, *, pinned: bool) -> dict:
    """DeepSpeed's configuration of a cell. Microbatches are the schedule's, so there is nothing to accumulate."""
    return {
        "train_micro_batch_size_per_gpu": cell.batch.global_size // cell.layout.degree("dp"),
        "gradient_accumulation_steps": 1,
        "gradient_clipping": clip,  # always said: left out it is 1.0
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 1,
            "overlap_comm": False,
            "contiguous_gradients": False,
            "reduce_bucket_size": bucket_elements,
            "allgather_bucket_size": bucket_elements,
            **({"offload_optimizer": {"device": "cpu", "pin_memory": pinned}} if cell.offload == "optimizer" else {}),
        },
    }
