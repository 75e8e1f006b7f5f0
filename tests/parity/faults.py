"""Instruments that break one thing in a cell. Each is called with the engine, the world and the cell on every rank."""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.cell import Cell
from benchmarks.contract import Engine
from benchmarks.models._batch_norm import BatchNorm, SynchronisedBatchNorm
from benchmarks.world import World, nested_dimensions
from harness.observe import process_group


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


@contextmanager
def scaled_gradient(engine: Engine, factor: float) -> Iterator[None]:
    """Multiply the gradient of one weight on this rank, before any strategy sees it, where the rank holds it."""
    last = engine.parts[-1]
    if "head" not in dict(last.module.named_children()):
        yield
        return
    norm = last.module.get_submodule("head.norm")
    forward = norm.forward

    def scaled(x: Tensor) -> Tensor:
        # Where parameters are flattened the weight is no parameter, but a plain attribute.
        weight, parameter = norm.weight, norm._parameters.pop("weight", None)
        norm.__dict__["weight"] = _Scaled.apply(weight, factor)
        try:
            return forward(x)
        finally:
            del norm.__dict__["weight"]
            if parameter is None:
                norm.weight = weight
            else:
                norm._parameters["weight"] = parameter

    norm.forward = scaled
    yield
    norm.forward = forward


def is_last_copy(world: World) -> bool:
    """Whether this rank is the last one of those that hold the same stages."""
    return all(world.coordinate(axis) == world.degrees[axis] - 1 for axis in ("dp", "tp"))


def louder_gradient(engine: Engine, world: World, cell: Cell) -> None:
    """On the last rank that holds the output layer, multiply the gradient of one weight by 1.1 from now on."""
    if is_last_copy(world):
        scaled_gradient(engine, 1.1).__enter__()


class _Skip(TorchDispatchMode):
    """Lets the first sum over one group's ranks happen on copies, so that it is without effect."""

    def __init__(self, group: dist.ProcessGroup):
        super().__init__()
        self.group, self.skipped = group, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.name() if hasattr(func, "name") else str(func)
        if self.skipped or not self._mine(name, args):
            return func(*args, **kwargs)
        self.skipped = True
        if "_c10d_functional" in name and "reduce_scatter" in name:
            func(*args, **kwargs)
            return args[0].chunk(self.group.size())[self.group.rank()].clone()
        if "_c10d_functional" in name:
            func(*args, **kwargs)
            return args[0].clone()
        if "_reduce_scatter_base_" in name:
            output, given = args[0], args[1]
            _, work = func(torch.empty_like(output), given.clone(), *args[2:], **kwargs)
            output.copy_(given.chunk(self.group.size())[self.group.rank()].view_as(output))
            return output, work
        tensors = args[0]
        if name.startswith("c10d::reduce_"):
            return func([t.clone() for t in tensors], *args[1:], **kwargs)
        _, work = func([t.clone() for t in tensors], *args[1:], **kwargs)
        return tensors, work

    def _mine(self, name: str, args: tuple) -> bool:
        sums = ("c10d::allreduce_", "c10d::reduce_", "c10d::_reduce_scatter_base_", "_c10d_functional::all_reduce")
        if not name.startswith((*sums, "_c10d_functional::reduce_scatter")):
            return False
        first = args[0][0] if isinstance(args[0], list) else args[0]
        if first.numel() < 16:
            return False
        group = process_group(args)
        # By its ranks: a framework may have made a group of its own of the same ones.
        return group is not None and dist.get_process_group_ranks(group) == dist.get_process_group_ranks(self.group)


def _skip_over(name: str, world: World) -> None:
    group = world.group(name)
    if group is not None:
        _Skip(group).__enter__()


def skip_data_reduction(engine: Engine, world: World, cell: Cell) -> None:
    """Leave out the first sum of gradients over the data axis; of a nested one, over its outer ranks where there are some."""
    outer, inner = nested_dimensions("dp")
    _skip_over(next((name for name in (outer, inner) if world.group(name) is not None), "dp"), world)
    for module in engine._replica.modules:
        if isinstance(module, DistributedDataParallel):  # its reducer takes what the collective's future gives: the copies
            module.register_comm_hook([], _skip_first_bucket)


def _skip_first_bucket(calls: list[None], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    calls.append(None)
    if len(calls) > 1:
        return allreduce_hook(None, bucket)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def skip_tensor_reduction(engine: Engine, world: World, cell: Cell) -> None:
    """Leave out the first sum over the tensor axis."""
    _skip_over("tp", world)


def skip_tied_reduction(engine: Engine, world: World, cell: Cell) -> None:
    """Leave out the first sum over the stages that share a weight, on those stages."""
    for part in engine.parts:
        for placement in part.placements.values():
            for group in placement.pending:
                _Skip(world.group(group)).__enter__()
                return


def forget_copies(engine: Engine, world: World, cell: Cell) -> None:
    """Leave the gradients of a weight that this rank holds twice as they are."""
    engine._replica._sums._copies.clear()


def reducer_in_backward(engine: Engine, world: World, cell: Cell) -> None:
    """Let DDP reduce while backward runs, although it is split."""
    replica, stages = engine._replica, engine._schedule._schedule._stages
    wrapped = [DistributedDataParallel(part.module, process_group=world.group("dp")) for part in engine.parts]
    for stage, ddp in zip(stages, wrapped, strict=True):
        ddp.require_backward_grad_sync = False
        stage.submod.module = ddp

    def backward(part: int, run: Any, *, kind: str, last: bool) -> Any:
        if last:
            wrapped[part].reducer.prepare_for_backward([])
        return run()

    replica.backward, replica.complete = backward, lambda: None


def units_in_backward(engine: Engine, world: World, cell: Cell) -> None:
    """Let FSDP's units reduce while backward runs, although it is split."""
    replica = engine._replica

    def backward(part: int, run: Any, *, kind: str, last: bool) -> Any:
        replica.modules[part].set_requires_gradient_sync(last)
        replica.modules[part].set_is_last_backward(last)
        return run()

    replica.backward, replica.complete = backward, lambda: None


def unwatched_threads(engine: Engine, world: World, cell: Cell) -> None:
    """Leave FairScale's threads without what watches the thread that drives them."""
    from fairscale.nn.pipe.worker import Task

    sys.modules["benchmarks.pipeline_parallel.fairscale"]._Task = Task


def threads_without_autocast(engine: Engine, world: World, cell: Cell) -> None:
    """Leave FairScale's threads without the autocast of the thread that drives them."""
    sys.modules["benchmarks.pipeline_parallel.fairscale"].apply_precision = lambda *_: None


def forget_sums_of_norms(engine: Engine, world: World, cell: Cell) -> None:
    """Take the gradients of norms over a tensor rank's own tokens for those over all."""
    sums = engine._replica._sums
    sums._pending = {entry: None for entry in sums._pending if entry[1] != "tp"}
    finish = sums.finish

    def forgetful() -> None:
        for entry in sums._parameters:
            parameter, gradient = entry.parameter, entry.parameter.grad
            if isinstance(gradient, DTensor) and gradient.placements[0].is_partial():
                parameter.grad = DTensor.from_local(gradient.to_local(), gradient.device_mesh, parameter.placements)
        finish()

    sums.finish = forgetful


def forget_compiling(engine: Engine, world: World, cell: Cell) -> None:
    """Make torch.compile the identity."""
    torch._dynamo.config.disable = True


def forget_offload(engine: Engine, world: World, cell: Cell) -> None:
    """Leave what blocks keep where it is."""
    for part in engine.parts:
        for name in part.blocks:
            block = part.module.get_submodule(name)
            block.forward = block.forward.__wrapped__


def recompute_products(engine: Engine, world: World, cell: Cell) -> None:
    """Make selective checkpointing forget what it was to keep."""
    for part in engine.parts:
        for name in part.blocks:
            forward = part.module.get_submodule(name).forward
            forward.keywords.pop("context_fn")


def forget_checkpointing(engine: Engine, world: World, cell: Cell) -> None:
    """Make checkpointing the identity."""
    for part in engine.parts:
        for name in part.blocks:
            block = part.module.get_submodule(name)
            block.forward = block.forward.args[0]


def one_microbatch(engine: Engine, world: World, cell: Cell) -> None:
    """Make microbatching the identity: the batch runs in one piece."""
    engine._schedule._microbatches = 1


def local_norms(engine: Engine, world: World, cell: Cell) -> None:
    """Let every synchronised batch norm see this rank's images alone."""
    for part in engine.parts:
        for module in part.module.modules():
            if isinstance(module, SynchronisedBatchNorm):
                module.forward = functools.partial(BatchNorm.forward, module)


def other_optimizer(engine: Engine, world: World, cell: Cell) -> None:
    """In the timed engine, forget the momentum; verification has an optimizer of its own and cannot see it."""
    optimizer = engine._replica._optimizer
    if isinstance(optimizer, torch.optim.AdamW):
        for group in optimizer.param_groups:
            group["betas"] = (0.0, group["betas"][1])


def doubled_later(engine: Engine, world: World, cell: Cell) -> None:
    """From the fourth step on, let the last rank's copy of one weight drift."""
    step, taken = engine.step, []

    def drifting(*arguments: Any, **options: Any) -> Any:
        result = step(*arguments, **options)
        taken.append(None)
        if len(taken) > 9 and world.rank == world.size - 1:
            with torch.no_grad():
                next(iter(engine.parts[-1].module.parameters())).mul_(1.001)
        return result

    engine.step = drifting


def skipping(engine: Engine, world: World, cell: Cell) -> None:
    """Overflow in every step from the thirtieth on, when the timed ones have begun."""
    scaler, calls = engine._replica._scaler, []
    unscale = scaler.unscale

    def overflowing(gradients: Any) -> bool:
        calls.append(None)
        return unscale(gradients) or len(calls) > 30

    scaler.unscale = overflowing
