"""FairScale's `Pipe` (Kim et al., torchgpipe, 2020): GPipe in one process. FairScale is no longer maintained; torch took `Pipe`
over and dropped it again for `torch.distributed.pipelining`.

A batch is cut into microbatches inside one forward. At every clock tick each stage takes the next microbatch of the stage
before it, each device driven by a thread of its own:

    clock      0  1  2  3  4
    stage 0    0  1  2                 a microbatch's number
    stage 1       0  1  2
    stage 2          0  1  2

The outputs are put together again, so that the loss is that of the whole batch and there is one backward, in which autograd
goes the same way back; edges that carry nothing keep its order. The bubble is GPipe's, (N - 1) / (m + N - 1) with N stages and
m microbatches.

All microbatches are in flight at once, and GPipe's answer is to checkpoint whole stages:

| checkpoint | a stage keeps | backward runs again |
|---|---|---|
| `never` | everything of m microbatches | nothing |
| `except_last` | its inputs, and everything of the last microbatch | m - 1 microbatches |
| `always` | its inputs | m microbatches |

The last microbatch is the first whose backward comes, so that to run it again at once would gain nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from fairscale.nn import Pipe
from fairscale.nn.pipe import pipeline as upstream
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import (
    NESTS_BACKWARD,
    SEVERAL_DEVICES,
    SEVERAL_IN_FLIGHT,
    Assembly,
    Chain,
    Model,
    Part,
    PipelineParallel,
    Replica,
)
from benchmarks.pipeline_parallel import _balance
from benchmarks.pipeline_parallel._stages import in_one_process, tied_across
from benchmarks.schedule import Accumulate
from benchmarks.site import Site
from benchmarks.stages import spread
from benchmarks.techniques.precision import PRECISIONS, Precision, apply_precision
from benchmarks.world import World

WATCHED = (
    "shim: the threads of FairScale's Pipe take over what watches the operations of the thread that drives them, as they take "
    "over its grad mode alone (Task in fairscale/nn/pipe/worker.py)"
)
CAST = (
    "shim: each stage of FairScale's Pipe enters autocast by itself, as its threads know nothing of the one around it (Task in "
    "fairscale/nn/pipe/worker.py)"
)


class _Task(upstream.Task):
    """A microbatch of a stage, in whose thread the modes of the driving thread hold."""

    def __init__(self, *arguments: Any, **work: Any):
        super().__init__(*arguments, **work)
        self._modes = _get_current_dispatch_mode_stack()

    def compute(self) -> Any:
        with ExitStack() as stack:
            for mode in self._modes:  # entered already, in another thread
                _push_mode(mode)
                stack.callback(_pop_mode)
            return super().compute()


class PipedChain(Chain):
    """Units of which a `Pipe` is made when they first run: until then data strategies may wrap them, and move them, which a
    Pipe denies.

    Args:
        sizes: how many units each stage holds.
        options: of `fairscale.nn.Pipe`.
    """

    def __init__(self, units: Mapping[str, nn.Module], sizes: Sequence[int], precision: Precision, options: dict[str, Any]):
        super().__init__(units)
        self._sizes, self._precision, self._options = sizes, precision, options
        self._pipe: list[Pipe] = []  # in a list it is no submodule, so that each parameter has one name

    def forward(self, x: Tensor) -> Tensor:
        if not self._pipe:
            self._pipe.append(self._piped())
        return self._pipe[0](x)

    def _piped(self) -> Pipe:
        upstream.Task = _Task
        pipe = Pipe(nn.Sequential(OrderedDict(self.named_children())), self._sizes, **self._options)
        for stage, device in zip(pipe.partitions, pipe.devices, strict=True):
            apply_precision(stage, self._precision, device.type)
        return pipe


@dataclass(frozen=True)
class Strategy(PipelineParallel):
    """Options of `fairscale.nn.Pipe`, and of `fairscale.nn.pipe.balance`."""

    checkpoint: Literal["never", "except_last", "always"] = "never"
    """Of which microbatches stages keep their inputs alone. FairScale's own default is `except_last`."""
    balance: Literal["even", "time", "size"] = "even"
    """How the model is cut: `even`, by the FLOPs of its units, as under every other pipeline; or by FairScale, as each unit's
    `time` was measured or, on GPUs, its `size`."""

    def processes(self, degree: int) -> int:
        return 1

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        nests = frozenset({NESTS_BACKWARD}) if self.repeats(cell) else frozenset()
        return tied_across(self, cell, model) | nests | {SEVERAL_DEVICES, SEVERAL_IN_FLIGHT}

    def repeats(self, cell: Cell) -> int:
        count = cell.batch.microbatches
        return {"never": 0, "except_last": count - 1, "always": count}[self.checkpoint]

    def in_flight(self, cell: Cell, model: Model, stage: int) -> int:
        return cell.batch.microbatches if self.checkpoint == "never" else 1

    def split(self, model: Model, cell: Cell, world: World) -> list[Part]:
        precision = PRECISIONS[cell.precision]
        caveats = [WATCHED, *([CAST] if precision.mixed else [])]
        stages = spread(self, model, cell)
        if self.balance != "even":
            stages = _balance.found(self.balance, model, cell, world)
            caveats.append(f"balance by {self.balance}: {' | '.join(' '.join(units) for units in stages)}")
        devices = {unit: world.devices[index] for index, units in enumerate(stages) for unit in units}
        units, where = in_one_process(model, stages)  # a tied weight in two copies, as a Pipe wants it (verify_splitting)
        options = {"devices": world.devices, "chunks": cell.batch.microbatches, "checkpoint": self.checkpoint}
        return [
            Part(
                model=model,
                module=PipedChain(units, [len(s) for s in stages], precision, options),
                index=0,
                count=1,
                blocks=model.blocks,
                placements=where,
                devices=devices,
                per_microbatch=model.units[0],
                caveats=tuple(caveats),
            )
        ]

    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> Accumulate:
        return Accumulate(assembly, replica, 1)  # Pipe cuts into microbatches by itself

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if cell.layout.degree("tp") > 1:
            return (
                "a tensor parallel group has one process for each of its devices, and here one process drives all stages: "
                "choose a pipeline with a process for each stage"
            )
        if self.balance == "size" and site.kind != "cuda":
            return (
                "FairScale's size profiler supports CUDA devices alone (profile_sizes in fairscale/nn/pipe/balance/profile.py):"
                " use balance=time or even"
            )
        if self.checkpoint != "never" and cell.checkpointing != "none":
            return (
                f"Pipe with checkpoint={self.checkpoint} runs whole stages again, in which blocks would be run again once more:"
                " use checkpoint=never, or checkpointing none"
            )
        if cell.compile != "none":
            return (
                "Pipe runs stages in threads of its own, and what torch.compile is told holds for one thread alone "
                "(torch.compiler.set_stance), so that nobody could watch what is compiled: use compile=none"
            )
        if cell.layout.degree("dp") > 1 and site.kind == "cuda" and models.load(cell.model).mixes_rows:
            return (
                "Pipe's threads would start the all-reduces of norms over the batch in another order on every data rank "
                "(fairscale/nn/pipe/worker.py), and wait for each other: choose a pipeline with a process for each stage"
            )
        return None
