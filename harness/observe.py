"""What one training step really does, seen from outside: dtypes, collectives, recomputation, microbatches.

Nothing is asked of an implementation. Operations are seen as torch dispatches them, optimizers by torch's global hooks
(so that the true one is seen even inside an engine that hides it), blocks by hooks on their modules. Runs on each rank;
`harness.observation` puts the ranks' findings together.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.contract import SPLITS_BACKWARD, Chain, Engine, Part
from benchmarks.world import World

NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
NAMES |= {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8"}
MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_scaled_mm"}
FUSED_ATTENTION = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
}
COLLECTIVES = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "send": "send",
    "recv": "recv",
    "gather": "gather",
    "scatter": "scatter",
}
"""How torch's names of collectives begin, longer ones first where one begins another, and what they are called here."""
REDUCTIONS = {"all_reduce", "reduce_scatter", "reduce"}
FEW_ELEMENTS = 8
"""Reductions of fewer elements carry losses, norms and flags, not gradients."""

WRAPPERS = (DTensor, AsyncCollectiveTensor)
"""Tensors that stand for others: a mode steps back from them and sees the operations on what they hold."""


class Observer:
    """Watches everything that runs inside `with observer:`, which should be one step."""

    def __init__(self, engine: Engine, world: World):
        self._engine = engine
        self._calls = _Calls(world)
        self._dtypes: dict[str, set[str]] = defaultdict(set)
        self._devices: dict[str, set[str]] = defaultdict(set)
        self._rates: set[float] = set()
        self._forwards: Counter[int] = Counter()
        self._leaves: Counter[tuple[int, str, str]] = Counter()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Observer:
        for part in self._engine.parts:
            self._watch(part)
        self._keep(register_optimizer_step_pre_hook(self._before_update))
        self._keep(register_optimizer_step_post_hook(self._after_update))
        self._stack.enter_context(self._calls)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def finding(self) -> dict[str, Any]:
        """What was seen on this rank.

        `dtypes` and `devices`: subject -> names; `collectives`: axes -> operation -> count and bytes; `attention_backend`;
        `splits_backward`: whether input and weight gradients are meant to be computed apart; `learning_rates`: of the
        optimizers; `recomputed_products`: matrix products and attentions that backward ran again; `offloaded_bytes`: what
        blocks sent to the host; `compiled_graphs`: programs that torch.compile has made in this process; and `parts`: for each
        its `index`, `units`, how often its `forward` ran, and `blocks`: block -> how often its forward ran, recomputation
        included.
        """
        dtypes = {subject: sorted(names) for subject, names in self._dtypes.items()}
        dtypes["compute"] = sorted(self._calls.compute)
        dtypes["reduction"] = sorted(self._calls.reduction)
        return {
            "dtypes": dtypes,
            "devices": {subject: sorted(names) for subject, names in self._devices.items()},
            "collectives": {
                axes: {name: dict(counts) for name, counts in seen.items()} for axes, seen in self._calls.collectives.items()
            },
            "attention_backend": self._calls.attention,
            "splits_backward": SPLITS_BACKWARD in self._engine.traits,
            "learning_rates": sorted(self._rates),
            "recomputed_products": self._calls.recomputed_products,
            "offloaded_bytes": self._calls.offloaded_bytes,
            "compiled_graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"] if "torch._dynamo" in sys.modules else 0,
            "parts": [
                {
                    "index": part.index,
                    "units": _units(part),
                    "forwards": self._forwards[part.index],
                    "blocks": {block: self._block_forwards(part.index, block) for block in part.blocks},
                }
                for part in self._engine.parts
            ],
        }

    def _block_forwards(self, index: int, block: str) -> int:
        """How often a block ran: as often as the laziest of its leaves, so that a part that is repeated is no block."""
        return min((n for (part, name, _), n in self._leaves.items() if (part, name) == (index, block)), default=0)

    def _keep(self, handle: Any) -> None:
        self._stack.callback(handle.remove)

    def _watch(self, part: Part) -> None:
        def forward(*_: Any) -> None:
            if torch._C._current_graph_task_id() == -1:  # not in backward, which may repeat it
                self._forwards[part.index] += 1

        self._keep(part.module.get_submodule(part.per_microbatch).register_forward_pre_hook(forward))
        for parameter in _trained(part.module):
            self._note("parameters", parameter)
        for block in part.blocks:
            # A block's own hooks do not run again when checkpointing repeats its forward; its leaves' do.
            for name, leaf in part.module.get_submodule(block).named_modules():
                # Repetition ends as soon as backward has what it needs, before dropouts of 0 that keep nothing.
                if not any(True for _ in leaf.children()) and not isinstance(leaf, nn.Dropout):
                    self._keep(leaf.register_forward_pre_hook(self._leaf_hook(part.index, block, name)))
                    # Also where the repetition breaks off in it.
                    self._keep(leaf.register_forward_hook(lambda *_: self._calls.leave(), always_call=True))

    def _leaf_hook(self, index: int, block: str, name: str) -> Any:
        def hook(*_: Any) -> None:
            self._leaves[index, block, name] += 1
            self._calls.enter()

        return hook

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in _optimized(optimizer):
            if parameter.grad is not None:
                self._note("gradients", parameter.grad)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._rates |= {float(group["lr"]) for group in optimizer.param_groups}
        for parameter in _optimized(optimizer):
            # What the optimizer updates is a master copy where the model's parameters are of another dtype.
            self._note("optimizer_state", parameter)
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.dim() > 0:  # step counters are scalars
                    self._note("optimizer_state", value)

    def _note(self, subject: str, tensor: Tensor) -> None:
        self._dtypes[subject].add(_name(tensor.dtype))
        self._devices[subject].add((tensor.to_local() if isinstance(tensor, DTensor) else tensor).device.type)


class _Calls(TorchDispatchMode):
    """Sees operations and collectives."""

    def __init__(self, world: World):
        super().__init__()
        self._world = world
        self.compute: set[str] = set()
        self.reduction: set[str] = set()
        self.collectives: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        self.attention: str | None = None
        self.recomputed_products = 0
        self.offloaded_bytes = 0
        self._inside = threading.local()

    def enter(self) -> None:
        """A layer's forward begins on this thread."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1

    def leave(self) -> None:
        """It ends."""
        self._inside.depth = max(0, getattr(self._inside, "depth", 0) - 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, WRAPPERS) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")
        if name[0] in ("c10d", "_c10d_functional"):
            self._communicate(name[2], args, result)
        elif name[0] == "hpbench" and name[2] == "to_host":
            self.offloaded_bytes += result.nbytes
        elif torch._C._current_graph_task_id() == -1:  # not in backward
            self._compute(name[2], args)
        elif name[2] in MATRIX_PRODUCTS or name[2] in FUSED_ATTENTION:
            # Gradients themselves are computed without recording any, outside of layers: in backward only a repeated forward
            # records, or runs inside of a layer, whose function may have a backward of its own (DeepSpeed's linear).
            self.recomputed_products += torch.is_grad_enabled() or getattr(self._inside, "depth", 0) > 0
        return result

    def _compute(self, name: str, args: Any) -> None:
        if name in MATRIX_PRODUCTS or name in FUSED_ATTENTION:
            # Behind the two factors of a scaled product stand their scales, which are fp32.
            factors = args[:2] if name == "_scaled_mm" else args
            self.compute |= {_name(t.dtype) for t in tree_leaves(factors) if isinstance(t, Tensor)}
        if name in FUSED_ATTENTION:
            self.attention = FUSED_ATTENTION[name]
        elif name in ("_softmax", "_safe_softmax") and self.attention is None:
            self.attention = "math"

    def _communicate(self, name: str, args: Any, result: Any) -> None:
        kind = next((ours for prefix, ours in COLLECTIVES.items() if name.lstrip("_").startswith(prefix)), None)
        group = process_group(args)
        if kind is None or group is None:  # a wait, a barrier
            return
        # The logical volume: the whole tensor, on whichever side of the call it stands.
        sides = [[t for t in tree_leaves(side) if isinstance(t, Tensor)] for side in (*args, result)]
        axes = axes_of(dist.get_process_group_ranks(group), self._world.degrees)
        seen = self.collectives[axes][kind]
        seen["count"] += 1
        seen["bytes"] += max(sum(t.nbytes for t in side) for side in sides)
        if kind in REDUCTIONS and "dp" in axes.split("+"):
            tensors = [t for side in sides for t in side if t.numel() >= FEW_ELEMENTS and t.is_floating_point()]
            self.reduction |= {_name(t.dtype) for t in tensors}


def axes_of(ranks: list[int], degrees: Any) -> str:
    """Along which axes these ranks differ, joined by `+`: `dp`, or `pp+tp`.

    Args:
        degrees: axis -> processes, outermost first; ranks are numbered row by row.
    """
    varying = []
    for axis, degree in reversed(degrees.items()):
        if len({rank % degree for rank in ranks}) > 1:
            varying.append(axis)
        ranks = [rank // degree for rank in ranks]
    return "+".join(reversed(varying)) or "none"


def process_group(args: Any) -> dist.ProcessGroup | None:
    """The process group among the arguments of a collective."""
    for argument in args:
        if isinstance(argument, dist.ProcessGroup):
            return argument
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return dist.ProcessGroup.unbox(argument)
    # Functional collectives name theirs in the last argument.
    if args and isinstance(args[-1], str):
        return dist.distributed_c10d._resolve_process_group(args[-1])
    return None


def _optimized(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _trained(module: nn.Module) -> Iterator[Tensor]:
    """The parameters of a module, those too that are no registered ones between two forwards, as where a data strategy that
    knows no DTensor works on the plain tensors inside."""
    yield from module.parameters()
    for inner in module.modules():
        yield from (value for value in vars(inner).values() if isinstance(value, Tensor) and value.requires_grad)


def _units(part: Part) -> list[str]:
    if isinstance(part.module, Chain):
        return [name for name, _ in part.module.named_children()]
    return list(dict.fromkeys(name.partition(".")[0] for name in part.placements))


def _name(dtype: torch.dtype) -> str:
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))
