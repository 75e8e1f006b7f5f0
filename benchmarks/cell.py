"""A cell: one point of the matrix, as pure data. Imports no torch.

A cell's id is a hash of its canonical JSON, so equal cells have equal ids on every machine.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.layout import Layout

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Checkpointing = Literal["none", "selective", "every-4", "every-3", "every-2", "full", "fairscale", "deepspeed"]
"""Which activations are made again in backward: none, all but those of matrix products and attention, or all of every k-th
block; `fairscale` and `deepspeed` are `full` by their own functions."""
CHECKPOINTING: tuple[Checkpointing, ...] = get_args(Checkpointing)
"""From what keeps most to what keeps least."""
Offload = Literal["none", "activations", "optimizer", "parameters"]
"""What waits in the host's memory while the device does not need it: what blocks keep for backward; the optimizer's state,
with which the host updates; or besides that parameters and gradients."""
Compile = Literal["none", "block", "model"]
"""What torch.compile makes one program of: nothing, each block, or all that a pipeline stage holds."""
STANDARD_LIBRARY = "python-stdlib"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


class Batch(_Data):
    """How much is trained on in one optimizer step."""

    global_size: int = Field(alias="global", default=8, ge=1)
    """Samples (rows) per step over all data ranks."""
    microbatches: int = Field(default=1, ge=1)
    """Into how many parts one data rank's share is cut."""
    sequence: int = Field(default=64, ge=1)
    """Tokens per sample."""


class Optimizer(_Data):
    """The optimizer of the timed steps. Verification always uses plain SGD."""

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0)
    """For batches of `base_batch` samples; for all, without scaling."""
    scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate grows with the global batch: `linear`, as of k times the samples SGD's step is k small ones
    (Goyal et al., Accurate, Large Minibatch SGD, 2017), or `sqrt`, which keeps the noise of the step and suits Adam
    (Malladi et al., On the SDEs and Scaling Rules for Adaptive Gradient Algorithms, 2022)."""
    base_batch: int = Field(default=8, ge=1)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.1, ge=0)

    def rate(self, samples: int) -> float:
        """The learning rate of steps on global batches of so many samples."""
        exponent = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[self.scaling]
        return self.learning_rate * (samples / self.base_batch) ** exponent


class Protocol(_Data):
    """How a cell is measured. Durations in seconds."""

    verify_steps: int = Field(default=3, ge=1)
    warmup_steps: int = Field(default=50, ge=1)
    """At most so many warm-up steps; they end earlier once the step time is steady."""
    measure_steps: int = Field(default=30, ge=0)
    """At least so many timed steps; 0: the cell is verified only, and its record has no metrics."""
    measure_seconds: float = Field(default=1.0, ge=0)
    """Timing goes on until this much time was measured, too."""
    loss_samples: int = Field(default=0, ge=0)
    """The loss after training on so many samples is recorded, so that batches of different sizes can be compared by what they
    reach and not by throughput alone; 0: it is not. Further steps, untimed, are run where the others were too few."""
    probe: bool = True
    """Whether extra, untimed steps are run for memory and collectives."""
    build_limit: float = Field(default=300, gt=0)
    verify_limit: float = Field(default=300, gt=0)
    measure_limit: float = Field(default=900, gt=0)
    """Of each of probe, warm-up and timed steps."""
    cell_limit: float = Field(default=3600, gt=0)
    """Of everything that is done for the cell, the training of its reference not counted."""
    search: bool = False
    """Whether the largest microbatch that fits is looked for, and measured; `batch.global` then only says where to begin."""
    reference_bytes: int | None = None
    """Memory the single-device reference may use; None: the device's own. A model that needs more is verified shallow."""


class Cell(_Data):
    """One point of the matrix: model x layout x techniques x devices x batch x protocol."""

    model: str = "llama-tiny"
    """`family-size`, with options in brackets: `llama-8b[blocks=4]`."""
    layout: Layout = Layout()
    processes: int = Field(default=1, ge=1)
    """Processes the launcher starts; less than `devices` where one process drives several."""
    devices: int = Field(default=1, ge=1)
    precision: Precision = "fp32"
    checkpointing: Checkpointing = "none"
    offload: Offload = "none"
    compile: Compile = "none"
    clip: float = Field(default=0.0, ge=0)
    """Largest global gradient norm; 0.0 leaves gradients as they are."""
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    seed: int = 0
    data: str = STANDARD_LIBRARY
    """Where the text comes from: `python-stdlib`, or the path of a file."""
    protocol: Protocol = Protocol()

    def canonical(self) -> str:
        """The cell as canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of `canonical()`."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]

    def rows_per_microbatch(self) -> int:
        """Samples in one microbatch of one data rank; legality has seen to it that this is whole."""
        return self.batch.global_size // self.layout.degree("dp") // self.batch.microbatches

    def command(self) -> str:
        """The command that repeats this cell alone."""
        words = ["hpbench run", f"--model '{self.model}'", f"--layout '{self.layout}'"]
        default = Cell()
        for flag in ("precision", "checkpointing", "offload", "compile", "clip", "seed"):
            if getattr(self, flag) != getattr(default, flag):
                words.append(f"--{flag} {getattr(self, flag)}")
        words.append(
            f"--batch {self.batch.global_size} --microbatches {self.batch.microbatches} --sequence {self.batch.sequence}"
        )
        if self.data != STANDARD_LIBRARY:
            words.append(f"--text '{self.data}'")
        for name, value in self.protocol.model_dump(exclude_defaults=True).items():
            words.append(f"--set protocol.{name}={value}")
        for name, value in self.optimizer.model_dump(exclude_defaults=True, mode="json").items():
            words.append(f"--set 'optimizer.{name}={value}'")
        return " ".join(words)


def recomputes(checkpointing: Checkpointing, block: int) -> bool:
    """Whether the forward of a model's block, numbered from 0, is run again in backward."""
    if checkpointing.startswith("every-"):
        return block % int(checkpointing.removeprefix("every-")) == 0
    return checkpointing != "none"
