"""1F1B by DeepSpeed: its TrainSchedule, carried out by the instructions of its PipelineEngine (Microsoft, 2020).

DeepSpeed writes a schedule as a list of instructions for each stage, and its engine is their interpreter:

    load a microbatch · receive activations · forward · send activations
    receive gradients · backward · send gradients                           of one of several buffers
    reduce tied gradients · reduce gradients · step                         once, at the end

A stage alternates one forward with one backward, so that stage i of N holds the activations of at most N - i microbatches;
there may be fewer microbatches than stages. Sends and receives are blocking and nothing overlaps with them; the shape of
activations goes ahead of the first of them. The last stage's engine divides gradients by the number of microbatches.

The instructions at the end are the replica's: it sums what tied stages share, reduces, and takes the step, whatever its
data strategy. Beside DeepSpeed's own that is the very call its pipeline engine would make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe import schedule as instructions
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor

from benchmarks.cell import Cell
from benchmarks.contract import SEVERAL_IN_FLIGHT, Assembly, Batch, Model, Replica
from benchmarks.deepspeed_world import PRELOAD as PRELOAD
from benchmarks.deepspeed_world import join
from benchmarks.pipeline_parallel._stages import SpreadStages
from benchmarks.world import World


class Interpreter(PipelineEngine):
    """DeepSpeed's pipeline engine without an optimizer: backward and what follows the last one are a replica's."""

    replica: Replica

    def train(self, batch: Batch, microbatches: int) -> Tensor | None:
        """Carry out the schedule of one step. Returns the mean loss on the last stage, None elsewhere."""
        shares = (part.chunk(microbatches) for part in batch)
        self.set_dataiterator(zip(*shares, strict=True))
        self.total_loss, self._compute_loss = None, True
        self._left = microbatches
        self._exec_schedule(self._train_schedule())
        return self.total_loss / microbatches if self.is_last_stage() else None

    def _backward(self, buffer_id: int) -> None:
        """Instead of DeepSpeed's own, which asks for an optimizer."""
        outputs, gradient = self.pipe_buffers["outputs"][buffer_id], self.grad_layer
        if self.is_last_stage():
            outputs, gradient = self.replica.scale(self.loss), None
        self._left -= 1
        self._running_engine_backward = True  # its hooks on a stage's output refuse a backward that it knows nothing of
        try:
            self.replica.backward(0, lambda: outputs.backward(gradient), kind="full", last=self._left == 0)
        finally:
            self._running_engine_backward = False
        self.pipe_buffers["outputs"][buffer_id] = None

    def _leave_to_replica(self) -> None:
        """It follows in `Replica.update`."""

    _INSTRUCTION_MAP: ClassVar[dict[type, Callable[..., None]]] = {
        **PipelineEngine._INSTRUCTION_MAP,
        instructions.BackwardPass: _backward,
        instructions.ReduceTiedGrads: _leave_to_replica,
        instructions.ReduceGrads: _leave_to_replica,
        instructions.OptimizerStep: _leave_to_replica,
    }


class DeepSpeedSchedule:
    """One step of a stage."""

    def __init__(self, assembly: Assembly, replica: Replica, cell: Cell, world: World, config: dict[str, Any]):
        join(world)
        (stage,) = assembly.parts
        (module,) = replica.modules
        self._microbatches = cell.batch.microbatches
        # As functions, of which DeepSpeed gives one to each stage: to it they have no parameters, so that it leaves those
        # to the replica, which may have flattened or cut them, and marked them for its norm.
        layers = [lambda x: module(x)] * stage.count
        degrees = world.degrees
        pipeline = PipelineModule(
            layers=layers,
            topology=PipeModelDataParallelTopology(num_pp=degrees["pp"], num_dp=degrees["dp"], num_mp=degrees["tp"]),
            loss_fn=assembly.loss,
            partition_method="uniform",
        )
        grid = pipeline.mpu()
        self._engine = Interpreter(
            args=None,
            model=pipeline,
            mpu=grid,
            config=config,
            config_class=DeepSpeedConfig(config, grid),
            dist_init_required=False,
        )
        self._engine.replica = replica

    def run(self, batch: Batch) -> Tensor | None:
        """All microbatches of one step. Returns the mean loss on the last stage, None elsewhere."""
        return self._engine.train(batch, self._microbatches)


@dataclass(frozen=True)
class Strategy(SpreadStages):
    """No knobs. Stages are cut as in every other pipeline, not by DeepSpeed's count of parameters."""

    def traits(self, cell: Cell, model: Model) -> frozenset[str]:
        return super().traits(cell, model) | {SEVERAL_IN_FLIGHT}

    def in_flight(self, cell: Cell, model: Model, stage: int) -> int:
        return min(cell.batch.microbatches, cell.layout.degree("pp") - stage)

    def configuration(self, cell: Cell) -> dict[str, Any]:
        return {
            "train_micro_batch_size_per_gpu": cell.rows_per_microbatch(),
            "gradient_accumulation_steps": cell.batch.microbatches,
            # Between tensor ranks activations are sent whole, as by every other pipeline.
            "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
            "timers": {"throughput": {"enabled": False}},  # which would wait for the device in every forward
        }

    def schedule(self, assembly: Assembly, replica: Replica, cell: Cell, world: World) -> DeepSpeedSchedule:
        return DeepSpeedSchedule(assembly, replica, cell, world, self.configuration(cell))
