"""Tensor parallelism by DeepSpeed's AutoTP, which replaces layers of a finished model whose names match a pattern.

    x (replicated) -> LinearLayer -> nonlinearity or attention heads -> LinearAllreduce -> sum over ranks -> y (replicated)

The cuts are Megatron's (Shoeybi et al., 2019): a LinearLayer holds some of a Linear's outputs, a LinearAllreduce some of its
inputs. The patterns are written here from the model's plan, as AutoTP's own guesses know the models of Hugging Face alone.
Every LinearLayer sums the gradient of its own input over the ranks, so that query, key and value are three all-reduces in
backward where one would do for the sum of the three.

Embeddings stay whole: AutoTP would cut them along the hidden dimension. So does an output layer that is tied to one, as in
AutoTP itself, and on every stage of a pipeline alike. What is whole sees whole gradients on every rank, as both kinds of
layers give back whatever is replicated whole.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.autotp_config import AutoTPConfig
from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer, set_autotp_mode

from benchmarks import models
from benchmarks.cell import Cell
from benchmarks.contract import Assembly, Model, TensorParallel
from benchmarks.deepspeed_world import join
from benchmarks.site import Site
from benchmarks.tensor_parallel._cuts import note_cut
from benchmarks.tensor_parallel._on_cpu import caveats
from benchmarks.world import World

KINDS: Mapping[str, Mapping[str, Any]] = {
    "column": {"partition_type": "column"},
    "row": {"partition_type": "row"},
    "head": {"partition_type": "column", "gather_output": True},
}
"""Style of the tensor plan -> what AutoTP calls it."""


@dataclass(frozen=True)
class Strategy(TensorParallel):
    """No knobs."""

    def configuration(self, cell: Cell) -> Mapping[str, Any]:
        return _partition(models.load(cell.model), cell.layout.degree("tp"))

    def unsupported(self, cell: Cell, site: Site, traits: frozenset[str]) -> str | None:
        if cell.checkpointing == "selective":
            return (
                "AutoTP sums the ranks' products in place (RowParallel in deepspeed/module_inject/layers.py), and selective "
                "checkpointing keeps those very tensors, in which they would be summed a second time: choose full or every-2"
            )
        return None

    def shard(self, assembly: Assembly, plan: Mapping[str, str], world: World) -> Assembly:
        join(world)
        set_autotp_mode(training=True)  # otherwise its layers keep no graph
        partition = AutoTPConfig.from_dict(_partition(assembly.model, world.degrees["tp"]))
        for part in assembly.parts:
            replace = AutoTP(part.module, (), "", None, None, None, partition_config=partition, training_mode=True)
            # Given as they are: by itself it makes new groups, of a world that has no pipeline.
            replace.mp_group, replace.mp_size = world.group("tp"), world.degrees["tp"]
            replace._replace_module(part.module)
            for name, module in part.module.named_modules():
                if isinstance(module, LinearAllreduce):
                    note_cut(name, "row", part)
                elif isinstance(module, LinearLayer):
                    note_cut(name, "column", part)
        return dataclasses.replace(assembly, caveats=caveats(assembly, world))


def _partition(model: Model, degree: int) -> dict[str, Any]:
    """AutoTP's `partition_config` for a model."""
    specs = []
    for pattern, style in model.tensor_plan:
        # An output layer that is tied has no weight of its own.
        rows = [shape[0] for name, shape in model.parameter_shapes.items() if fnmatch.fnmatchcase(name, f"{pattern}.weight")]
        if style in KINDS and rows and (style != "head" or rows[0] % degree == 0):
            specs.append({"patterns": [fnmatch.translate(f"{pattern}.weight")], **KINDS[style]})
    return {"tp_size": degree, "use_default_specs": False, "layer_specs": specs}
