"""The protocols between models, strategies and the harness.

`compose` lets an `Assembly` flow through the strategies in one fixed order:

    pipeline split -> tensor shard -> checkpointing -> compile -> precision -> data wrap

so n data, m tensor and k pipeline files give n * m * k layouts, and no file knows another by name. What one
strategy must know of the others it learns from their *traits*, a closed vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from benchmarks.cell import Cell
    from benchmarks.site import Site
    from benchmarks.techniques.precision import Precision
    from benchmarks.world import World

R = TypeVar("R")

# ------------------------------------------------------------------------------------------------ traits

SEVERAL_IN_FLIGHT = "several microbatches in flight"
"""A pipeline runs further forwards before the first backward."""
SPLITS_BACKWARD = "splits backward"
"""Input and weight gradients are computed apart, so autograd hooks on parameters may not fire."""
NESTS_BACKWARD = "nests backward"
"""One backward runs others inside itself, so autograd hooks on a parameter fire several times in it, each with a part of the
gradient."""
TIED_ACROSS_STAGES = "tied across stages"
"""One parameter of the model is held, and trained, by two stages."""
DTENSOR = "DTensor parameters"
"""Parameters are `torch.distributed.tensor.DTensor`s."""
SEVERAL_DEVICES = "drives several devices"
"""One process holds parameters on several devices."""
SEPARATE_STAGES = "separate stages"
"""Ranks hold different parts of the model's depth."""

HOOKS_DO_NOT_TELL = frozenset({SPLITS_BACKWARD, NESTS_BACKWARD})
"""With one of these a hook on a parameter does not tell that its gradient is complete."""

TRAITS = HOOKS_DO_NOT_TELL | {SEVERAL_IN_FLIGHT, TIED_ACROSS_STAGES, DTENSOR, SEVERAL_DEVICES, SEPARATE_STAGES}

# ------------------------------------------------------------------------------------------------ models


class Samples(Protocol):
    """What a model trains on: from it, the same global batches in the same order for every layout and world size."""

    def batch(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one step's global batch of `rows` samples, on the CPU."""

    def describe(self) -> dict[str, str | int]:
        """What a record says of it: `source`, `sha256`, and how much there is."""


class Plan(NamedTuple):
    """One row of a model's tensor plan: which modules are cut, and how."""

    pattern: str
    """`fnmatch` pattern of a module's name, for example `blocks.*.attention.query`."""
    style: Literal["region", "column", "row", "vocabulary", "head", "sequence", "lookup", "whole"]
    """`region`: encloses column and row layers, its input is replicated, its output a sum over the axis.
    `column`: a Linear cut along its outputs (dimension 0 of its weight and bias).
    `row`: a Linear cut along its inputs (dimension 1 of its weight; its bias is replicated and added once).
    `vocabulary`: an Embedding cut along its rows. `head`: a Linear cut along its outputs, which are gathered.
    The others are whole on every rank, and matter where ranks share the sequence between regions (sequence parallelism):
    `sequence`: works on each token alone, such as a norm. `lookup`: an Embedding, which gives the whole sequence.
    `whole`: a Linear outside of regions, which takes the whole sequence. A vocabulary that the degree does not divide makes a
    `lookup` of `vocabulary` and a `whole` of `head`."""


class Model(ABC):
    """What a model file tells about itself, so that every strategy serves every model.

    A model is a chain: `units` in order, each a module that maps the previous one's output tensor to the next
    one's input. A pipeline cuts between units. Parameters are named `<unit>.<name within the unit>`.
    """

    name: str
    """As it was asked for, for example `llama-tiny` or `llama-8b[blocks=4]`."""
    units: tuple[str, ...]
    """Names of the units in order, for example `("embedding", "block0", ..., "head")`."""
    blocks: tuple[str, ...]
    """The repeated units: what checkpointing recomputes and sharded data parallelism gathers."""
    tensor_plan: tuple[Plan, ...]
    """How tensor parallelism cuts it; patterns match `<unit>.<module>`."""
    mixes_rows: bool = False
    """Whether a sample's output depends on the others in its batch, so that the batch may not be cut for convenience."""
    smooth_options: Mapping[str, bool] = {}
    """The options of the model that is verified in its place, where its own gradient jumps: with a ReLU, a rounding error of
    one activation decides whether there is a gradient, and two layouts that are both right come out different."""
    step_length: float = 0.3
    """How far the first step of verification moves all weights together. Much longer steps diverge; shorter ones drown in the
    rounding of the weights, so that updates cannot be compared."""
    tied: Mapping[str, str]
    """Parameter name -> name of the parameter that it *is*, for example `{"head.linear.weight": "embedding.token.weight"}`."""

    @abstractmethod
    def build(self, unit: str) -> nn.Module:
        """A new module for `unit`, on the current default device; its values are set by `benchmarks.initialize`."""

    @abstractmethod
    def initial(self, name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """The initial fp32 value of one parameter, by its single-device name, on the CPU."""

    def first_value(self, name: str, draw: Callable[[str], torch.Generator]) -> Tensor:
        """The whole initial value of one parameter by its single-device name, fp32, on the CPU.

        Args:
            draw: the generator of a name; by default the parameter's own is drawn from.
        """
        return self.initial(name, self.parameter_shapes[name], draw(name))

    @abstractmethod
    def samples(self, cell: Cell) -> Samples:
        """What it trains on in a cell."""

    @abstractmethod
    def example(self, rows: int, sequence: int) -> Tensor:
        """The shape and dtype of an input batch: a tensor on the meta device."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross entropy in fp32 over the last dimension of `output`, the last unit's output; `target` is that of
        `samples`, without that dimension."""

    @abstractmethod
    def boundary(self, unit: str, rows: int, sequence: int) -> tuple[int, ...]:
        """The shape of the fp32 output of `unit`, which is sent where a pipeline is cut behind it."""

    @abstractmethod
    def forward_flops(self, unit: str, rows: int, sequence: int, *, causal: bool) -> int:
        """Matrix multiplication FLOPs of one forward of `unit`; a multiply-add is 2.

        With `causal`, attention counts the sequence * (sequence + 1) / 2 pairs that a causal mask leaves.
        """

    @abstractmethod
    def tensor_problem(self, degree: int) -> str | None:
        """Why the model cannot be cut `degree` ways by tensor parallelism, in one sentence; None if it can."""

    def share_batch(self, module: nn.Module, world: World) -> None:
        """Let layers that look at the whole batch find the other data ranks; called once with each new part.

        By default no layer does."""
        assert not self.mixes_rows

    def incomparable(self, cell: Cell) -> str | None:
        """Why a step of the cell is another one than the single-device step on the whole batch, in one sentence; None if
        it must be the same. By default it must: a mean over rows is the mean over equal shares of them."""
        return None

    def shallow(self, blocks: int) -> Mapping[str, int]:
        """The options that make it a model of the same widths with about so many blocks."""
        return {"blocks": blocks}

    def activation_bytes(self, rows: int, sequence: int) -> int:
        """A cautious estimate of what one forward of the blocks keeps for backward.

        By default the blocks' matrix products, one row for each token: what backward keeps of one is its input and what
        follows from its output, in fp32 or as two 16-bit copies, once as it is and once after the element-wise operation
        beside it."""
        shapes = (s for name, s in self.parameter_shapes.items() if len(s) == 2 and name.startswith(self.blocks))
        tokens = rows * (1 if self.longest_sequence is None else sequence)
        return tokens * sum(8 * sum(shape) for shape in shapes)

    @property
    @abstractmethod
    def longest_sequence(self) -> int | None:
        """The largest number of tokens in a sample; None where samples are no sequences of tokens."""

    @property
    @abstractmethod
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Single-device name -> shape of every distinct parameter (tied ones once), in order."""

    def parameter_count(self) -> int:
        """Distinct trainable elements."""
        return sum(math.prod(shape) for shape in self.parameter_shapes.values())

    def training_flops(self, rows: int, sequence: int, *, causal: bool = True) -> int:
        """FLOPs of forward and backward of one batch: three times the forward, as every matrix product has two gradients.

        To be overridden where a product with the input, which needs no gradient, has only one."""
        return 3 * sum(self.forward_flops(u, rows, sequence, causal=causal) for u in self.units)


class Chain(nn.Module):
    """Units of a model run one after the other: a whole model, or one pipeline stage of it.

    Args:
        units: name -> module; parameters are then called `<unit>.<name>` on every stage.
    """

    def __init__(self, units: Mapping[str, nn.Module]):
        super().__init__()
        for name, unit in units.items():
            self.add_module(name, unit)

    def forward(self, x: Tensor) -> Tensor:
        """The first unit's input in, the last unit's output out."""
        for unit in self.children():
            x = unit(x)
        return x


# ------------------------------------------------------------------------------------------------ what flows


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one parameter of the single-device model lives on this rank."""

    name: str
    """Its name in the single-device model."""
    shape: tuple[int, ...]
    """Its shape there."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """Axis -> the tensor dimension that is cut evenly along it; an absent axis replicates."""
    pending: tuple[str, ...] = ()
    """Names of process groups (`World.group`) over which the gradient must still be summed, for example tied stages."""
    counted: bool = True
    """False on the second copy of a tied weight, so that norms count each element once."""

    def sharded(self, axis: str, dimension: int) -> Placement:
        """The same parameter, cut along `dimension` over `axis`."""
        return replace(self, shards={**self.shards, axis: dimension})


@dataclass(kw_only=True)
class Part:
    """One pipeline chunk on this rank. Parameters are on the meta device until a data strategy's `wrap` has
    called `initialize.materialize`."""

    model: Model
    """What it is a part of."""
    module: nn.Module
    index: int
    """Which chunk, from 0."""
    count: int
    """How many chunks the model is cut into."""
    blocks: tuple[str, ...]
    """Submodules of `module` that checkpointing and sharded data parallelism treat as units."""
    placements: dict[str, Placement]
    """Parameter name within `module` -> where it comes from."""
    devices: Mapping[str, torch.device] = field(default_factory=dict)
    """Unit -> device, where one process drives several; empty: the rank's own device."""
    per_microbatch: str = ""
    """The submodule of `module` whose forward runs once for each microbatch; empty: `module` itself."""
    caveats: tuple[str, ...] = ()
    """What a reader of the numbers must know of the way that it was made."""


@dataclass(kw_only=True)
class Assembly:
    """What flows split -> shard -> checkpoint -> compile -> precision -> wrap."""

    model: Model
    parts: list[Part]
    loss: Callable[[Tensor, Tensor], Tensor]
    """(output, target) -> mean loss of a microbatch, a scalar."""
    boundary: Callable[[str, int, int], tuple[int, ...]]
    """`Model.boundary`, or what a rank holds of it: the shape that is sent where a pipeline cuts."""
    precision: Precision
    step_context: Callable[[], AbstractContextManager] = nullcontext
    """Entered once by the engine around the whole schedule."""
    traits: frozenset[str] = frozenset()
    """Traits of the pipeline and tensor strategies that made it."""
    caveats: tuple[str, ...] = ()
    """What a reader of the numbers must know of the way that parts were made."""


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """The optimizer of any replica, which makes it from its local parameters."""

    kind: type[torch.optim.Optimizer]
    settings: Mapping[str, Any]
    """Keyword arguments of `kind`. What builds it by itself, as an optimizer that shards another, takes both."""
    clip: float
    """Largest global gradient norm; 0.0: no clipping. Every replica must be told, 0.0 included."""

    def groups(self, parameters: Iterable[nn.Parameter]) -> list[dict[str, list[nn.Parameter]]]:
        """Parameter groups that differ in nothing but what fused kernels cannot work on together."""
        # They cannot mix plain tensors and DTensors, nor DTensors of several meshes.
        found: dict[DeviceMesh | None, list[nn.Parameter]] = {}
        for parameter in parameters:
            found.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        return [{"params": group} for group in found.values()]

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""
        return self.kind(self.groups(parameters), **self.settings)


class Update(NamedTuple):
    """What one optimizer update did."""

    norm: Tensor | None
    """Global gradient norm before clipping; None where it was not wanted, or the step was skipped."""
    skipped: bool = False
    """Whether loss scaling found an overflow and left the parameters as they were."""


class StepResult(NamedTuple):
    """What one optimizer step gave on this rank."""

    loss: Tensor | None
    """Mean loss of this data rank's batch, on the device; None on ranks that do not hold the last stage."""
    norm: Tensor | None
    skipped: bool


class Batch(NamedTuple):
    """One data rank's share of a global batch, on the rank's device."""

    inputs: Tensor
    """Rows first: (rows, sequence) tokens, or (rows, ...) images."""
    targets: Tensor
    """(rows, sequence) tokens, or (rows,) labels."""


# ------------------------------------------------------------------------------------------------ strategies


class Replica(ABC):
    """A data rank's copy of the model. Owns the backward call, reduction, loss scale, norm, clipping and update."""

    modules: Sequence[nn.Module]
    """What the schedule calls, one per part."""
    caveats: tuple[str, ...] = ()
    """What a reader of the numbers must know, for example "no overlap: ..."."""

    @abstractmethod
    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale; the loss itself where there is none."""

    @abstractmethod
    def backward(self, part: int, run: Callable[[], R], *, kind: Literal["full", "input", "weight"], last: bool) -> R:
        """Run one backward of one microbatch of one part.

        Args:
            part: its position in `modules`.
            run: does the autograd work; its result is returned.
            kind: which gradients it computes.
            last: a hint that it is this part's last backward of the step.
        """

    @abstractmethod
    def update(self, *, want_norm: bool) -> Update:
        """Gradients complete -> pending sums -> reduce -> unscale -> norm -> clip -> step -> zero."""

    @abstractmethod
    def parameters(self) -> Iterator[tuple[Placement, Callable[[], Tensor]]]:
        """Every local parameter with a function that gives its master copy, whole over the data axis and cut as its
        placement says; all ranks of a stage must call them in this order."""


class Schedule(Protocol):
    """Owns microbatches and the 1/m of their mean."""

    def run(self, batch: Batch) -> Tensor | None:
        """All forwards and backwards of one step. Returns the mean loss where the last stage is held, None elsewhere."""


class Strategy(ABC):
    """One way to spread a model along one axis. Its fields, set by a dataclass, are its knobs."""

    axis: ClassVar[str]
    nested: ClassVar[bool] = False
    """Whether it takes several degrees, such as `dp=2x2`."""

    def processes(self, degree: int) -> int:
        """Processes along the axis; 1 where one process drives all its devices."""
        return degree

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        """What it is, in the closed vocabulary `TRAITS`."""
        return frozenset()

    def dtypes(self) -> Mapping[str, str]:
        """What a knob changes of the precision's dtypes: `reduction` for example, and the name of the dtype."""
        return {}

    def configuration(self, cell: Cell) -> Mapping[str, Any]:
        """What the framework behind it is configured with, for the record; empty where its knobs say all."""
        return {}

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        """Why it cannot run this cell, in one sentence with the upstream reason; None if it can.

        Args:
            traits: those of the *other* axes' strategies.
        """
        return None


class Shares(NamedTuple):
    """What a data rank holds of the part of the model that its other axes leave it, in multiples of that part."""

    parameters: float = 1.0
    gradients: float = 1.0
    """Buckets beside them included."""
    optimizer_state: float = 1.0
    """Of what the optimizer keeps for the whole part."""
    master: float = 0.0
    """Further fp32 copies of the parameters."""
    gathered: Literal["nothing", "blocks", "all"] = "nothing"
    """What is whole for a while although `parameters` are cut: two blocks at a time and what is outside of blocks, or all."""


class TensorParallel(Strategy):
    axis = "tp"

    @abstractmethod
    def shard(self, assembly: Assembly, plan: Mapping[str, str], world: World) -> Assembly:
        """Cut the parts of an assembly; called with one part at a time.

        Args:
            plan: name of a module in any of them -> style (`contract.Plan.style`), resolved for this degree.
        """


class PipelineParallel(Strategy):
    axis = "pp"

    @abstractmethod
    def split(self, model: Model, cell: Cell, world: World) -> list[Part]:
        """The parts this rank holds. Makes the groups of tied stages, on all ranks."""

    def caveats(self, device_kind: str) -> tuple[str, ...]:
        """What a reader of the numbers must know of the way it runs on devices of this kind, `cpu` or `cuda`."""
        return ()

    def placement(self, cell: Cell) -> Sequence[Sequence[int]]:
        """Which stages of the model each device along the axis holds, in order; by default one each."""
        return [(stage,) for stage in range(cell.layout.degree(self.axis))]

    def in_flight(self, cell: Cell, model: Model, stage: int) -> int:
        """Of how many microbatches a stage holds activations when its device holds most."""
        return cell.batch.microbatches if SEVERAL_IN_FLIGHT in self.traits(cell, model) else 1

    def repeats(self, cell: Cell) -> int:
        """Of how many microbatches it runs every block again in backward, by a checkpointing of its own."""
        return 0

    @abstractmethod
    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> Schedule:
        """What runs the microbatches through the parts."""


class DataParallel(Strategy):
    axis = "dp"
    offloads: ClassVar[frozenset[str]] = frozenset()
    """What it keeps on the host by means of its own, in the words of `Cell.offload`."""

    def shares(self, cell: Cell, traits: frozenset[str]) -> Shares:
        """What a rank holds, for an estimate of its memory. `traits` are those of the other axes' strategies."""
        return Shares()

    @abstractmethod
    def wrap(self, assembly: Assembly, optimizer: OptimizerRecipe, cell: Cell, world: World) -> Replica:
        """Materialise the parts and make them one replica among several."""


class Engine(ABC):
    """What owns one optimizer step of a cell, on one rank. The harness knows nothing else of an implementation."""

    parts: Sequence[Part]
    """What this rank holds, for those who observe it."""
    traits: frozenset[str] = frozenset()
    """Traits of the pipeline and tensor strategies that it is made of."""
    caveats: tuple[str, ...]

    @abstractmethod
    def step(self, batch: Batch, *, want_norm: bool = False) -> StepResult:
        """Train on one batch. The loss stays on the device; the norm only on request."""

    @abstractmethod
    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors of this rank's stage by single-device name, one at a time; all ranks of a stage iterate together.

        A parameter that the rank holds twice comes twice."""

    @abstractmethod
    def close(self) -> None:
        """Give back what can be given back."""


def check(traits: frozenset[str]) -> frozenset[str]:
    """The traits themselves.

    Raises:
        AssertionError: a trait outside the closed vocabulary.
    """
    assert traits <= TRAITS, f"unknown traits {sorted(traits - TRAITS)}"
    return traits
