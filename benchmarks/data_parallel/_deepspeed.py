"""What the strategies built on DeepSpeed share: its configuration, what it asks about other axes, its engine.

Precision is that of every other layout: fp32 parameters and state, autocast in forward, and one loss scale for the whole
world. DeepSpeed's own `bf16` and `fp16` mean something else (16-bit parameters with an fp32 master copy), and its fp16 loss
scale is decided by each stage alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import deepspeed
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import (
    DTENSOR,
    NESTS_BACKWARD,
    SEPARATE_STAGES,
    SEVERAL_DEVICES,
    SPLITS_BACKWARD,
    TIED_ACROSS_STAGES,
    Assembly,
    Placement,
    R,
    Replica,
    Update,
)
from benchmarks.deepspeed_world import PRELOAD as PRELOAD
from benchmarks.deepspeed_world import join
from benchmarks.initialize import materialize
from benchmarks.replica import Held, held
from benchmarks.site import Site
from benchmarks.techniques.precision import LossScaler
from benchmarks.tied import read_through
from benchmarks.world import World

OWN_DEFAULT_BUCKET = 500_000_000
"""Elements in DeepSpeed's buckets by default."""


class ModelParallelUnit:
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


def configuration(cell: Cell, stage: int, **options: Any) -> dict[str, Any]:
    """DeepSpeed's configuration of a cell, as it is recorded. Microbatches are the schedule's, so there is nothing to
    accumulate; and `gradient_clipping` is always said, as DeepSpeed clips at 1.0 where it is left out.

    Args:
        options: of `zero_optimization`. No bucket is made larger than the model, as DeepSpeed allocates some of them whole.
    """
    elements = models.load(cell.model).parameter_count()
    options = {name: min(value, elements) if name.endswith("bucket_size") else value for name, value in options.items()}
    if cell.offload in ("optimizer", "parameters"):
        options["offload_optimizer"] = {"device": "cpu"}
    if cell.offload == "parameters":
        options["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": cell.batch.global_size // cell.layout.degree("dp"),
        "gradient_accumulation_steps": 1,
        "gradient_clipping": cell.clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **options},
    }


def ready(configuration: Mapping[str, Any], world: World) -> dict[str, Any]:
    """The configuration for this rank's device; DeepSpeed is told of the process group that there is already."""
    join(world)
    zero = dict(configuration["zero_optimization"])
    for name in ("offload_optimizer", "offload_param"):
        if name in zero:  # pinning memory needs a device that reads it
            zero[name] = {**zero[name], "pin_memory": world.device.type == "cuda"}
    return {**configuration, "zero_optimization": zero}


def local_parts(assembly: Assembly, world: World) -> list[Held]:
    """The parameters of all parts, made real, as plain tensors that DeepSpeed can flatten."""
    for part in assembly.parts:
        materialize(part, world)
        if DTENSOR in assembly.traits:
            _use_local_tensors(part.module)
    return mark([entry for part in assembly.parts for entry in held(part)], world)


def mark(parameters: list[Held], world: World) -> list[Held]:
    """Say which parameters count in a norm: DeepSpeed sums squares over its model group and leaves out what is a copy."""
    for entry in parameters:
        entry.parameter.model_parallel = "tp" in entry.placement.shards or world.coordinate("tp") == 0
        entry.parameter.ds_pipe_replicated = not entry.placement.counted
    return parameters


def start(module: nn.Module, optimizer: Any, configuration: Mapping[str, Any], world: World) -> deepspeed.DeepSpeedEngine:
    """DeepSpeed's engine."""
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=dict(configuration), mpu=ModelParallelUnit(world), dist_init_required=False
    )
    return engine


def objection(cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
    """What no strategy of DeepSpeed can do."""
    if SEVERAL_DEVICES in traits and site.kind == "cuda":
        return "DeepSpeed moves the whole module to one device: choose a pipeline with a process for each stage"
    if {DTENSOR, SPLITS_BACKWARD} <= traits:
        return (
            "DeepSpeed works on the plain tensors behind DTensor parameters. These become DTensors anew in every "
            "forward (torch.distributed.tensor.parallel.ddp), and a schedule that computes weight gradients apart does "
            "not follow them back (torch/distributed/pipelining/_backward.py): use plain tensors, or whole backwards"
        )
    return None


def objection_of_stages(stage: int, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
    """What stages 2 and 3, which take gradients away while backward runs, cannot do."""
    if SEPARATE_STAGES in traits:
        return (
            f"ZeRO-{stage} reduces gradients in every backward, and DeepSpeed refuses it under a pipeline, where that would be "
            "once for each microbatch (deepspeed/runtime/pipe/engine.py): use stage 0 or 1 beside a pipeline"
        )
    if NESTS_BACKWARD in traits and cell.batch.microbatches > 1:
        return (
            f"ZeRO-{stage} takes each gradient away once in a backward, and a pipeline that checkpoints whole stages makes it "
            "in several pieces (reduce_ready_partitions_and_remove_grads): let the pipeline checkpoint nothing, or use stage 0 "
            "or 1"
        )
    if TIED_ACROSS_STAGES in traits:
        return (
            f"ZeRO-{stage} takes gradients away while backward runs (reduce_ready_partitions_and_remove_grads), and those of "
            "the two copies of a weight that stages share cannot be summed any more: use stage 0 or 1, or a model without"
        )
    return objection(cell, site, traits)


class EngineReplica(Replica):
    """DeepSpeed's engine as it is meant to be used: it is called, reduces while backward runs, and takes the step.

    Gradients that must still be summed over tensor ranks are summed as soon as backward has made them: there is no later
    moment, as DeepSpeed has then taken them away.
    """

    def __init__(self, assembly: Assembly, parameters: list[Held], engine: deepspeed.DeepSpeedEngine, world: World):
        self.modules = [engine]
        self._held, self._engine, self._world = parameters, engine, world
        scale = assembly.precision.loss_scale
        self._scaler = LossScaler(scale, world.device, dist.group.WORLD) if scale else None
        self._arrived: set[str] = set()
        for entry in parameters:
            entry.parameter.register_hook(self._arrival(entry))

    def _arrival(self, entry: Held) -> Callable[[Tensor], Tensor]:
        def arrive(gradient: Tensor) -> Tensor:
            self._arrived.add(entry.placement.name)
            for group in entry.placement.pending:
                dist.all_reduce(gradient, group=self._world.group(group))
            return gradient

        return arrive

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss) if self._scaler else loss

    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        self._engine.set_gradient_accumulation_boundary(last)
        return run()

    def update(self, *, want_norm: bool) -> Update:
        missing = {entry.placement.name for entry in self._held} - self._arrived
        if missing:
            raise RuntimeError(f"parameter {min(missing)!r} has no gradient after backward")
        self._arrived.clear()
        if self._scaler:
            # DeepSpeed unscales where it clips: gradients may lie with its optimizer on the host by now.
            self._engine.optimizer.loss_scale = self._scaler.value
        self._engine.step()
        # Where one rank holds what is not finite, so does DeepSpeed's norm, which is one for the world: it leaves out the step.
        skipped = bool(self._engine.optimizer.overflow)
        if self._scaler:
            self._scaler.adjust(skipped)
        return Update(norm_of(self._engine, self._world) if want_norm and not skipped else None, skipped)

    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        for entry in self._held:
            yield entry.placement, lambda p=entry.parameter: p.detach()


def norm_of(engine: deepspeed.DeepSpeedEngine, world: World) -> Tensor:
    """DeepSpeed's global norm, known only after the step."""
    norm = engine.get_global_grad_norm()
    return norm.to(world.device) if isinstance(norm, Tensor) else Tensor([norm]).squeeze().to(world.device)


def _use_local_tensors(module: nn.Module) -> None:
    """Give DeepSpeed the plain local tensors behind DTensor parameters, which it flattens into buffers of its own.

    Hooks make them DTensors for the forward. DDP needs and does the same; this is its own transform.
    """
    read_through(module)  # the transform knows parameters by their first name alone
    _pre_dp_module_transform(module)
