"""What a cell left behind: schema 1 of one line of `records.jsonl`. Imports no torch.

Field names are a contract that other programs read: a change of meaning raises `SCHEMA`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.cell import Cell

SCHEMA = 1

Status = Literal["ok", "skipped", "oom", "timeout", "crashed", "diverged"]
Verdict = Literal["passed", "passed (shallow)", "passed (smooth)", "passed (shallow, smooth)", "failed", "not comparable"]
Phase = Literal["build", "verify", "warmup", "measure", "probe"]


class _Data(BaseModel):
    # A loss that is no number any more is written "NaN", which JSON can hold and which is read back; null is not.
    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="strings")


class Verification(_Data):
    """How the cell compares with a single-device run from the same weights, data and precision."""

    reference: str
    """Cell id of the single-device reference."""
    model: str
    """The model as verified: `shallow`, of fewer blocks than the cell's, where the whole one does not fit one device, or batch
    norm in 16 bits magnifies rounding; `smooth` where the gradient of the cell's own jumps."""
    losses: list[float] = []
    reference_losses: list[float] = []
    gradient_norms: list[float | None] = []
    """Global norm of each step; None where the step was skipped by loss scaling."""
    reference_gradient_norms: list[float | None] = []
    max_relative_loss_error: float | None = None
    max_relative_gradient_norm_error: float | None = None
    max_update_error: float | None = None
    """Over parameters, the largest max|dw - dw_ref| / max|dw_ref| after all steps."""
    worst_parameter: str | None = None
    tolerance: dict[str, float] = {}
    """`loss`, `gradient_norm`, `update`."""
    verdict: Verdict
    why: str | None = None
    """Why it failed or cannot be compared."""


class Observed(_Data):
    """What was really there, read from live objects and calls, not from what was asked for."""

    dtypes: dict[str, str] = {}
    """`parameters`, `compute`, `gradients`, `reduction`, `optimizer_state`."""
    devices: dict[str, str] = {}
    """Where `parameters`, `gradients` as the optimizer sees them, and `optimizer_state` lie: `cpu`, `cuda`."""
    learning_rates: list[float] = []
    """Those of the live optimizers' parameter groups, each once."""
    checkpointed_blocks: int = 0
    recomputed_forwards: int = 0
    """Block forwards per step that were run again in backward, over all ranks' blocks of one data rank."""
    microbatches: int = 0
    stages: list[list[str]] = []
    """Units of each pipeline stage."""
    collectives: dict[str, dict[str, dict[str, int]]] = {}
    """Axis -> operation -> {"count", "bytes"} of one step on rank 0."""
    attention_backend: str | None = None
    knobs: dict[str, Any] = {}
    """The values of all knobs of the layout's implementations, defaults included."""
    data: dict[str, Any] = {}
    """`source`, `sha256`, `bytes` of the text; of images their number `images`."""


class Metric(_Data):
    """One figure."""

    value: float
    unit: str
    low: float | None = None
    """Lower end of its 95 % interval."""
    high: float | None = None
    per_rank: list[float] | None = None


class Samples(_Data):
    """Raw per-step times; each is the largest over ranks of that step."""

    step_seconds: list[float] = []
    warmup_seconds: list[float] = []


class Record(_Data):
    """One line of `records.jsonl`."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    run_id: str
    cell_id: str
    time: str
    """When the cell ended, ISO 8601, UTC."""
    environment_id: str
    cell: Cell
    status: Status
    caveats: list[str] = []
    """`<word>: <sentence>`, for example `oversubscribed: 4 processes on 2 cores`."""
    reason: str | None = None
    """Why there is no measurement, in one sentence."""
    failed_rank: int | None = None
    phase: Phase | None = None
    """Where it failed; None where it did not."""
    log_tail: str | None = None
    verification: Verification | None = None
    observed: Observed | None = None
    durations: dict[str, float] = {}
    """Seconds the harness spent, by part: start, build, verify, warmup, measure, probe."""
    samples: Samples = Samples()
    metrics: dict[str, Metric] = {}
    """By name. Of every measured cell: step_seconds (s), samples_per_second, samples_per_second_per_device (samples/s), of one
    that trains on text also tokens_per_second, tokens_per_second_per_device (tokens/s), model_flops_per_second,
    model_flops_per_second_full_attention, hardware_flops_per_second (FLOP/s, all devices), final_loss (nats); of
    one whose protocol asks for it, loss_after_samples (nats), the mean over the last eighth of the samples.
    Of every probed cell, largest rank first and `per_rank`: peak_memory_bytes (allocated on CUDA, tracked tensors on CPU),
    and what was live at that peak: memory_parameters_bytes, memory_gradients_bytes, memory_optimizer_state_bytes,
    memory_activations_bytes, memory_other_bytes. On CUDA also peak_reserved_bytes, on CPU peak_resident_bytes (bytes).
    matmul_flops_per_second (FLOP/s of one device) is a measured ceiling. Where the table peak is known: mfu (fraction)."""

    def to_line(self) -> str:
        """The record as one line of JSON, without the newline."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Read one line.

        Raises:
            pydantic.ValidationError: it is no record of this schema.
        """
        return cls.model_validate_json(line)
