"""1F1B over stages that torch finds itself: `torch.distributed.pipelining.pipeline` traces the whole model with `torch.export`
and cuts the graph where a split specification says (PiPPy's front end; Narayanan et al., PipeDream, 2019, for the order).

What runs is the same 1F1B, with the same bubble, (N - 1) / (m + N - 1) with N stages and m microbatches. What differs is where
stages come from: the model need not be a chain, as the trace knows every value that crosses a cut and sends it, but shapes are
fixed at those of a microbatch and Python is gone: each layer has become a graph of operations, which an interpreter runs.
Tracing takes seconds before the first step. Tables that a model makes once are made in every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining.stage import _PipelineStage

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import Assembly, Chain, Model, Part, Replica
from benchmarks.initialize import chain, placements
from benchmarks.pipeline_parallel._stages import tie
from benchmarks.pipeline_parallel._torch_schedule import DrivenByReplica, OneForwardOneBackward, Shell
from benchmarks.site import Site
from benchmarks.stages import spread
from benchmarks.techniques.precision import PRECISIONS
from benchmarks.world import World

PRELOAD = ("torch.export._trace",)
"""What tracing imports for seconds; worth having before ranks are forked."""


class TracedStage(DrivenByReplica, _PipelineStage):
    """A stage that knows from the trace what it receives and sends."""


@dataclass(frozen=True)
class Strategy(OneForwardOneBackward):
    """No knobs."""

    def split(self, model: Model, cell: Cell, world: World) -> list[Part]:
        stages, index = spread(self, model, cell), world.coordinate("pp")
        example = model.example(cell.rows_per_microbatch(), cell.batch.sequence)
        precision = PRECISIONS[cell.precision]
        # The graph holds the casts of its own trace: those of another precision would be missing.
        with torch.autocast(world.device.type, dtype=precision.compute, enabled=precision.mixed, cache_enabled=False):
            pipe = _trace(model, stages, example, world.device)
        module = pipe.get_stage_module(index)
        _accept_other_dtypes(module)
        _to_meta(module)
        module.pipe_info = pipe.info()
        part = Part(
            model=model,
            module=module,
            index=index,
            count=len(stages),
            blocks=tuple(unit for unit in stages[index] if unit in model.blocks),
            placements=placements(model, module),
        )
        tie([part], model, stages, self.placement(cell), world)
        return [part]

    def stages(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> list[DrivenByReplica]:
        (part,), (module,) = assembly.parts, replica.modules
        shell = Shell(module)
        shell.graph = part.module.graph  # where the stage reads what it receives
        return [TracedStage(shell, part.index, part.module.pipe_info, world.device, world.group("pp"))]

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if cell.layout.degree("tp") > 1:
            return (
                "torch.export leaves graphs of operations with fixed shapes where layers were (torch/export/unflatten.py), "
                "which tensor parallelism cannot cut: choose a pipeline that keeps modules"
            )
        if cell.layout.degree("dp") > 1 and models.load(cell.model).mixes_rows:
            return (
                "torch.export leaves graphs of operations where layers were (torch/export/unflatten.py), and norms over the "
                "batch can no longer be told of the other data ranks: choose a pipeline that keeps modules"
            )
        return super().unsupported(cell, site, traits)


def _trace(model: Model, stages: Sequence[Sequence[str]], example: torch.Tensor, device: torch.device) -> Any:
    """The traced model, cut before the first unit of every stage but the first; its parameters have no elements."""
    # Stage by stage, so that a weight tied across two of them becomes two copies; the update sums their gradients.
    whole = Chain({name: unit for units in stages for name, unit in chain(model, units).named_children()})
    with FakeTensorMode():  # on the true device, which the graph remembers wherever it makes a tensor
        for name, parameter in list(whole.named_parameters()):
            _set(whole, name, torch.empty(parameter.shape, dtype=parameter.dtype, device=device))
        given = torch.empty(example.shape, dtype=example.dtype, device=device)
    return pipeline(whole, (given,), split_spec={units[0]: SplitPoint.BEGINNING for units in stages[1:]})


def _accept_other_dtypes(module: nn.Module) -> None:
    """Cast parameters to the dtype of the trace where they are read: a data strategy may gather them in the compute dtype, and
    where the trace saw nothing to cast the graph casts nothing."""
    for layer in (layer for layer in module.modules() if hasattr(layer, "graph")):
        parameters = dict(layer.named_parameters(remove_duplicate=False))
        for node in list(layer.graph.nodes):
            if node.op == "get_attr" and node.target in parameters:
                with layer.graph.inserting_after(node):
                    cast = layer.graph.call_method("to", (node, parameters[node.target].dtype))
                node.replace_all_uses_with(cast, delete_user_cb=lambda user, cast=cast: user is not cast)
        # An interpreter reads the graph, and torch.compile the code that was once written of it.
        getattr(layer, "graph_module", layer).recompile()


def _to_meta(module: nn.Module) -> None:
    """Give every parameter a place on the meta device, where it waits for its values."""
    for name, parameter in list(module.named_parameters()):
        _set(module, name, torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"))


def _set(module: nn.Module, name: str, value: torch.Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    module.get_submodule(owner).register_parameter(attribute, nn.Parameter(value))
