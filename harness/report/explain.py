"""One record told in sentences: what was asked, how it was verified, what was seen, the figures, how to repeat it.

hpbench explain results/<run> 3f2a
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import models
from benchmarks.cell import STANDARD_LIBRARY, Cell
from benchmarks.errors import UsageError
from harness.record import Record, Verification
from harness.report.words import STATUS_WORDS, amount, error, number, with_interval
from harness.store import Run
from harness.table import counted

MEMORY = "memory_"


def explain(run: Run, cell: str) -> str:
    """Tell the record of `cell` (its id, or the first characters of it).

    Raises:
        UsageError: no record, or several, begin like this.
    """
    return tell(find(run.records, cell, str(run.folder)))


def find(records: Iterable[Record], cell: str, where: str) -> Record:
    """The one record whose cell's id begins with `cell`; the last one where a resumed run tried the cell again.

    Raises:
        UsageError: none does, or several do.
    """
    by_id = {record.cell_id: record for record in records}
    found = [record for cell_id, record in by_id.items() if cell and cell_id.startswith(cell.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        some = ", ".join(sorted(by_id)[:4]) or "none"
        raise UsageError(
            f"no cell {cell!r} in run '{where}': it has {len(by_id)} cells ({some}{', ...' if len(by_id) > 4 else ''}); "
            "take an id from summary.csv or report.html"
        )
    names = ", ".join(f"{record.cell_id} ({record.cell.model} {record.cell.layout})" for record in found[:4])
    raise UsageError(f"{len(found)} cells in run '{where}' begin with {cell!r}: {names}; give more characters of the id")


def tell(record: Record) -> str:
    """The record as text, one paragraph for each question."""
    return "\n\n".join(
        paragraph
        for paragraph in (
            f"Cell {record.cell_id}: {record.cell.model} as {record.cell.layout}\n"
            f"ended {_ended(record)} at {record.time}, in run {record.run_id}.",
            _reason(record),
            f"Asked: {_asked(record.cell)}",
            f"Verified: {_verified(record.verification)}",
            _observed(record),
            _figures(record),
            _caveats(record),
            f"To repeat it:\n  {record.cell.command()}",
            f"Last lines of its log:\n{record.log_tail.rstrip()}" if record.log_tail else "",
        )
        if paragraph
    )


def _ended(record: Record) -> str:
    where = [f"in phase {record.phase}"] if record.phase else []
    where += [f"on rank {record.failed_rank}"] if record.failed_rank is not None else []
    return " ".join([STATUS_WORDS[record.status], *where])


def _reason(record: Record) -> str:
    if record.status == "ok":
        return ""
    return f"There is no measurement because: {record.reason or 'no reason was recorded'}"


def _asked(cell: Cell) -> str:
    devices = f"{cell.devices} device{'s' if cell.devices > 1 else ''}"
    processes = f"{cell.processes} process{'es' if cell.processes > 1 else ''}"
    parts = (
        f"in {cell.batch.microbatches} microbatches per data rank"
        if cell.batch.microbatches > 1
        else "each data rank's share at once"
    )
    checkpointing = "without checkpointing" if cell.checkpointing == "none" else f"with {cell.checkpointing} checkpointing"
    also = [f"{name} {value}" for name in ("offload", "compile") if (value := getattr(cell, name)) != "none"]
    techniques = ", ".join([checkpointing, *also])
    clip = f"gradients clipped to a global norm of {cell.clip:g}" if cell.clip else "gradients not clipped"
    optimizer = cell.optimizer
    rate = f"learning rate {optimizer.rate(cell.batch.global_size):g}"
    if optimizer.scaling != "none":
        rate += f" ({optimizer.learning_rate:g} at {optimizer.base_batch} samples, {optimizer.scaling} scaling)"
    return (
        f"train {cell.model} on {_data(cell)}, spread over {devices} as {cell.layout} by {processes}, in {cell.precision} "
        f"{techniques}. One step takes {cell.batch.global_size} samples{_tokens(cell)}, {parts}; {clip}; "
        f"{optimizer.name} with {rate}; seed {cell.seed}."
    )


def _reads_text(cell: Cell) -> bool:
    try:
        return models.reads_text(cell.model)
    except UsageError:  # a model of another version
        return True


def _data(cell: Cell) -> str:
    if not _reads_text(cell):
        return "images of handwritten digits"
    return "the source of Python's standard library" if cell.data == STANDARD_LIBRARY else f"the text {cell.data}"


def _tokens(cell: Cell) -> str:
    return f" of {cell.batch.sequence} tokens" if _reads_text(cell) else ""


def _verified(check: Verification | None) -> str:
    if check is None:
        return "no; it did not come so far."
    steps = f"{len(check.losses)} steps" if check.losses else "its steps"
    first = f"{check.verdict}: {steps} of plain SGD on {check.model} against the single-device run {check.reference}."
    why = f" {check.why[0].upper()}{check.why[1:].rstrip('.')}." if check.why else ""
    errors = {
        "loss": (check.max_relative_loss_error, "loss"),
        "gradient norm": (check.max_relative_gradient_norm_error, "gradient_norm"),
        "parameter updates": (check.max_update_error, "update"),
    }
    words = [
        f"{name} within {error(value)} (tolerance {error(check.tolerance.get(key))})"
        for name, (value, key) in errors.items()
        if value is not None
    ]
    worst = f"; the worst parameter is {check.worst_parameter}" if check.worst_parameter else ""
    norms = [norm for norm in check.reference_gradient_norms if norm is not None]
    true_norm = f" The true gradient norm was {number(min(norms))} or more." if norms else ""
    seen = f" {', '.join(words)}{worst}." if words else ""
    return (
        first
        + why
        + (f" It agreed in{seen}" if seen and check.verdict.startswith("passed") else f" Seen:{seen}" if seen else "")
        + true_norm
    )


def _observed(record: Record) -> str:
    seen = record.observed
    if seen is None:
        return ""
    lines = []
    if seen.dtypes:
        lines.append("dtypes were " + ", ".join(f"{what.replace('_', ' ')} {dtype}" for what, dtype in seen.dtypes.items()))
    if seen.microbatches:
        lines.append(f"a step ran {seen.microbatches} microbatch{'es' if seen.microbatches > 1 else ''}")
    blocks = "no block was checkpointed"
    if seen.checkpointed_blocks:
        blocks = (
            f"{seen.checkpointed_blocks} blocks were checkpointed, with {seen.recomputed_forwards} forwards run again per step"
        )
        if not seen.recomputed_products:
            blocks += ", of which the results of matrix products were kept"
    lines.append(blocks)
    if seen.offloaded_bytes:
        lines.append(f"blocks sent {amount(seen.offloaded_bytes, 'bytes')} to the host per step")
    if seen.compiled_graphs:
        lines.append(f"torch.compile made {counted(seen.compiled_graphs, 'program')}")
    if len(seen.stages) > 1:
        lines.append("the stages were " + " | ".join(" ".join(units) for units in seen.stages))
    for axis, operations in seen.collectives.items():
        calls = ", ".join(f"{what['count']} {name} ({amount(what['bytes'], 'bytes')})" for name, what in operations.items())
        lines.append(f"over {axis}, rank 0 called in one step {calls}")
    if seen.attention_backend:
        lines.append(f"attention ran by {seen.attention_backend}")
    if seen.knobs:
        lines.append("knobs were " + ", ".join(f"{name} {value}" for name, value in seen.knobs.items()))
    if seen.data:
        lines.append("the data was " + ", ".join(f"{name} {value}" for name, value in seen.data.items()))
    return "Observed:\n" + "\n".join(f"  {line}." for line in lines)


def _figures(record: Record) -> str:
    if record.status != "ok" or not record.metrics:
        return ""
    steps = len(record.samples.step_seconds)
    lines = [f"Figures, from {steps} timed steps after {len(record.samples.warmup_seconds)} of warm-up:"]
    for name, metric in record.metrics.items():
        lines.append(
            f"  {name.removesuffix('_bytes').replace('_', ' ')}: {with_interval(metric)}{_ranks(metric.per_rank, metric.unit)}"
        )
    spent = ", ".join(f"{part} {number(seconds)} s" for part, seconds in record.durations.items())
    return "\n".join([*lines, f"The harness spent: {spent}."] if spent else lines)


def _ranks(values: list[float] | None, unit: str) -> str:
    if not values or len(values) < 2:
        return ""
    return f"; ranks from {amount(min(values), unit)} to {amount(max(values), unit)}"


def _caveats(record: Record) -> str:
    return "Caveats:\n" + "\n".join(f"  {caveat}" for caveat in record.caveats) if record.caveats else ""
