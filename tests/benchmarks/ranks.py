"""What the ranks of multi-process tests run; called by name through the launcher."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks import data, models
from benchmarks.cell import Cell
from benchmarks.compose import compose
from benchmarks.contract import Batch, Engine
from benchmarks.models._batch_norm import BatchNorm, synchronise
from benchmarks.tensor_parallel._collectives import add as added
from benchmarks.tensor_parallel._collectives import copy as copied
from benchmarks.tensor_parallel._collectives import gather, gather_partial, scatter_sum, share
from benchmarks.tensor_parallel._cross_entropy import mean_cross_entropy
from benchmarks.world import World
from harness.launch.entry import Seat
from harness.memory_tracker import Tracker
from tests.parity.faults import is_last_copy, scaled_gradient


@contextmanager
def _engine(payload: dict[str, Any], seat: Seat, **options: Any) -> Iterator[tuple[Cell, World, Engine]]:
    torch.set_num_threads(1)
    cell = Cell.model_validate(payload)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    engine = compose(cell, world, **options)
    yield cell, world, engine
    engine.close()
    world.close()


def _batch(cell: Cell, world: World, step: int) -> Batch:
    inputs, targets = models.load(cell.model).samples(cell).batch(step, cell.batch.global_size)
    return data.share(inputs, targets, world.coordinate("dp"), world.degrees["dp"])


def _values(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in engine.parameters()}


def overflow_on_one_rank(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """One step whose gradient is infinite on the last rank with the output layer alone, then one that is whole."""
    with _engine(payload, seat, loss_scale=2.0**8) as (cell, world, engine):
        before = _values(engine)
        with scaled_gradient(engine, torch.inf if is_last_copy(world) else 1.0):
            bad = engine.step(_batch(cell, world, 0), want_norm=True)
        between = _values(engine)
        good = engine.step(_batch(cell, world, 1), want_norm=True)
        after = _values(engine)
    return {
        "skipped": [bad.skipped, good.skipped],
        "norm_of_skipped": bad.norm is not None,
        "moved": [any(not torch.equal(a[name], b[name]) for name in a) for a, b in ((before, between), (between, after))],
    }


def coordinates(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """Where a rank sits, and whom it reaches."""
    cell = Cell.model_validate(payload)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    world.make_group("model", ("pp", "tp"))
    world.make_group("ends", ("pp",), only={"pp": (0, 1)})
    found = {"coordinates": {axis: world.coordinate(axis) for axis in ("pp", "dp", "tp")}}
    for name in ("pp", "dp", "tp", "model", "ends"):
        found[name] = torch.distributed.get_process_group_ranks(world.group(name))
    found["next_stage"] = world.peer("pp", 1)
    world.close()
    return found


def order(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """What a stage does in one step: F a forward, B a backward, L one that it calls the last."""
    with _engine(payload, seat) as (cell, world, engine):
        done: list[str] = []
        engine.parts[0].module.register_forward_hook(lambda *_: done.append("F"))
        backward = engine._replica.backward

        def noted(part: int, run: Any, *, kind: str, last: bool) -> Any:
            done.append("L" if last else "B")
            return backward(part, run, kind=kind, last=last)

        engine._replica.backward = noted
        engine.step(_batch(cell, world, 0))
    return {"done": " ".join(done)}


def synchronised_norm(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """A batch norm over all data ranks on a rank's share of a batch, against one on the whole of it: the largest errors of
    output, input gradient and weight gradient."""
    torch.manual_seed(0)
    cell = Cell.model_validate(payload)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    images, weights = torch.randn(4, 5, 3, 3) * 2 + 1, torch.randn(4, 5, 3, 3)
    whole = BatchNorm(5)
    torch.nn.init.normal_(whole.weight)
    shared = torch.nn.Sequential(copy.deepcopy(whole))
    synchronise(shared, world.group("dp"), "cpu")
    found = []
    for norm, rows in ((whole, slice(None)), (shared, slice(2 * world.rank, 2 * world.rank + 2))):
        x = images[rows].clone().requires_grad_()
        y = norm(x)
        (y * weights[rows]).sum().backward()
        found.append((y.detach(), x.grad, next(norm.parameters()).grad))
    mine = slice(2 * world.rank, 2 * world.rank + 2)
    (y, gradient, weight), (shared_y, shared_gradient, shared_weight) = found
    torch.distributed.all_reduce(shared_weight)  # as a data strategy does
    pairs = ((shared_y, y[mine]), (shared_gradient, gradient[mine]), (shared_weight, weight))
    world.close()
    return {"errors": [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs], "kind": type(shared[0]).__name__}


def losses(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """The loss of each of sixty steps with the cell's own optimizer."""
    with _engine(payload, seat) as (cell, world, engine):
        found = [engine.step(_batch(cell, world, step)).loss.item() for step in range(60)]
    return {"losses": found}


def caveats(payload: dict[str, Any], seat: Seat) -> list[str]:
    """What the engine says of itself."""
    with _engine(payload, seat) as (_, _, engine):
        return list(engine.caveats)


def missing_gradient(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """A step in which one parameter takes no part."""
    with _engine(payload, seat) as (cell, world, engine):
        norm = engine.parts[-1].module.get_submodule("head.norm")
        norm.forward = lambda x: x * norm.weight.detach()
        try:
            engine.step(_batch(cell, world, 0))
        except RuntimeError as error:
            return {"said": str(error)}
    return {"said": None}


def resting_and_full_bytes(payload: dict[str, Any], seat: Seat) -> dict[str, int]:
    """Bytes of all tensors that there are because of the engine: between two steps, and when backward is done and nothing is
    updated yet. The engine has one parameter group and takes a whole number of microbatches as its cell says."""
    torch.set_num_threads(1)
    before = _bytes_alive()
    found: dict[str, int] = {}
    with _engine(payload, seat) as (cell, world, engine):
        update = engine._replica.update

        def watched(**options: Any) -> Any:
            found["full"] = _bytes_alive() - before
            return update(**options)

        for step in range(3):
            if step == 2:
                engine._replica.update = watched
            engine.step(_batch(cell, world, step))
        found["resting"] = _bytes_alive() - before
    return found


def _bytes_alive() -> int:
    """Of all tensors that Python knows, and their gradients, each storage once."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    tensors += [t.grad for t in tensors if isinstance(t, torch.nn.Parameter) and t.grad is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if not t.is_meta}.values())


def memory(payload: dict[str, Any], seat: Seat) -> dict[str, dict[str, int]]:
    """Bytes by purpose at the fullest moment of a third step, and at rest behind it."""
    with _engine(payload, seat) as (cell, world, engine), Tracker(engine) as tracker:
        for step in range(3):
            tracker.mark()
            engine.step(_batch(cell, world, step))
        peak = tracker.peak()
        tracker.mark()
        return {"peak": peak, "rest": tracker.peak()}


def activations(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """Bytes of activations at the fullest moment of the second step."""
    with _engine(payload, seat) as (cell, world, engine), Tracker(engine) as tracker:
        for step in range(2):
            tracker.mark()
            engine.step(_batch(cell, world, step))
        return {"bytes": tracker.peak()["activations"]}


def kept_bytes(payload: dict[str, Any], seat: Seat) -> dict[str, int]:
    """Bytes that there are more when the forward of a second step is done, and its backward not begun, than before it."""
    found: dict[str, int] = {}
    with _engine(payload, seat) as (cell, world, engine), Tracker(engine) as tracker:
        scale = engine._replica.scale

        def watched(loss: torch.Tensor) -> torch.Tensor:
            found["after"] = sum(tracker._bytes.values())
            return scale(loss)

        engine._replica.scale = watched
        for step in range(2):
            batch = _batch(cell, world, step)
            found["before"] = sum(tracker._bytes.values())
            engine.step(batch)
    return {"bytes": found["after"] - found["before"]}


def cut_cross_entropy(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """The cross entropy of `_cross_entropy`."""
    cell = Cell.model_validate(payload)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    return _against_the_whole(world, lambda logits, targets: mean_cross_entropy(logits, targets, world.group("tp")))


def cut_cross_entropy_of_a_layout(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """The cross entropy that a layout's tensor strategy gives."""
    cell = Cell.model_validate(payload)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    return _against_the_whole(world, compose(cell, world)._assembly.loss)


def _against_the_whole(world: World, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Cross entropy of logits cut over two ranks, some of them huge, against torch's of the whole: loss and gradient."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 8, generator=generator)
    logits[0, 0, 7] = 1e4
    targets = torch.randint(8, (3, 5), generator=generator)
    targets[0, :2] = torch.tensor([7, 0])
    whole = logits.clone().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(whole.flatten(0, 1), targets.flatten())
    (3 * wanted).backward()
    mine = logits.chunk(2, -1)[world.rank].clone().requires_grad_()
    found = loss(mine, targets)
    (3 * found).backward()
    error = (mine.grad - whole.grad.chunk(2, -1)[world.rank]).abs().max().item()
    world.close()
    return {"loss": found.item(), "wanted": wanted.item(), "gradient_error": error}


def fairscale_groups(payload: dict[str, Any], seat: Seat) -> dict[str, list[int]]:
    """The ranks of the groups that FairScale's layers would use."""
    from fairscale.nn.model_parallel import initialize as fairscale_initialize

    cell = Cell.model_validate(payload)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    engine = compose(cell, world)
    kinds = {"tp": "get_model_parallel_group", "dp": "get_data_parallel_group", "pp": "get_pipeline_parallel_group"}
    groups = {axis: getattr(fairscale_initialize, function)() for axis, function in kinds.items()}
    found = {axis: torch.distributed.get_process_group_ranks(group) for axis, group in groups.items()}
    found["shims"] = [caveat for caveat in engine.caveats if "process groups" in caveat]
    world.close()
    return found


def transposes(payload: dict[str, Any], seat: Seat) -> dict[str, Any]:
    """Every differentiated collective f and its backward g over two ranks: the sum over ranks of <f(x), y> - <x, g(y)>, with
    what all ranks hold alike counted once, is zero exactly where g is the transpose of f."""
    cell = Cell.model_validate(payload)
    world = World.start(cell, rank=seat.rank, size=seat.size, rendezvous=seat.rendezvous, device_kind="cpu")
    group = world.group("tp")

    def value(alike: bool, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0 if alike else 1 + world.rank)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    whole, part = (2, 4, 3), (2, 2, 3)
    cases = {  # f, shape of x and whether ranks hold it alike, the same of f(x)
        "copy": (lambda x: copied(x, group), whole, True, whole, False),
        "add": (lambda x: added(x, group), whole, False, whole, True),
        "gather": (lambda x: gather(x, -2, group), part, False, whole, True),
        "share": (lambda x: share(x, -2, group), whole, True, part, False),
        "gather_partial": (lambda x: gather_partial(x, -2, group), part, False, whole, False),
        "scatter_sum": (lambda x: scatter_sum(x, -2, group), whole, False, part, False),
    }
    found = {}
    for name, (function, shape, alike, result_shape, result_alike) in cases.items():
        x, y = value(alike, *shape).requires_grad_(), value(result_alike, *result_shape)
        result = function(x)
        result.backward(y)
        here = (result * y).sum().detach() / (2 if result_alike else 1) - (x * x.grad).sum().detach() / (2 if alike else 1)
        torch.distributed.all_reduce(here, group=group)
        found[name] = abs(here.item()) if tuple(result.shape) == result_shape else float("inf")
    world.close()
    return found
