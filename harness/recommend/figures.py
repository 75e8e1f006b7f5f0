"""A record, reduced to what advice is made of."""

from __future__ import annotations

from dataclasses import dataclass

from harness.record import Metric, Record
from harness.report.words import STATUS_WORDS, amount, number
from harness.table import techniques


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One cell as it was seen to run, or not to run."""

    record: Record
    verified: bool
    """It ended ok and agrees with the single-device run: its figures may be used."""
    speed: Metric | None
    """Tokens, or samples, per second."""
    step_seconds: float | None
    memory_bytes: float | None
    """Of a device at the peak of the fullest rank. A rank that drives several devices records their sum: here, their mean."""

    @property
    def name(self) -> str:
        """`<layout> in bf16, checkpointing full`."""
        return f"{self.record.cell.layout} in {techniques(self.record.cell)}"

    @property
    def unverified(self) -> str | None:
        """In a word, why its figures may not be used."""
        if self.verified:
            return None
        if self.record.status != "ok":
            return STATUS_WORDS[self.record.status]
        check = self.record.verification
        return "not comparable" if check and check.verdict == "not comparable" else "unverified"

    @property
    def figures(self) -> str:
        """Speed and memory in words, for example `1,200 tokens/s with 3.4 GiB`."""
        said = [f"{number(self.speed.value)} {self.speed.unit}"] if self.speed else []
        said += [self.memory] if self.memory_bytes is not None else []
        return " with ".join(said)

    @property
    def memory(self) -> str:
        """Its memory in words."""
        assert self.memory_bytes is not None
        several = self.record.cell.devices > self.record.cell.processes
        return amount(self.memory_bytes, "bytes") + (" (mean of its devices)" if several else "")


def seen(record: Record) -> Seen:
    """Pick the figures of a record; none where it is not verified."""
    check = record.verification
    verified = record.status == "ok" and check is not None and check.verdict.startswith("passed")
    metrics = record.metrics if verified else {}
    devices = record.cell.devices // record.cell.processes
    step, memory = metrics.get("step_seconds"), metrics.get("peak_memory_bytes")
    return Seen(
        record=record,
        verified=verified,
        speed=metrics.get("tokens_per_second") or metrics.get("samples_per_second"),
        step_seconds=step.value if step else None,
        memory_bytes=memory.value / devices if memory else None,
    )
