"""Runs one legal cell: reference, verification, measurement, and always exactly one record. Imports no torch."""

from __future__ import annotations

import contextlib
import errno
import math
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.errors import UsageError
from benchmarks.site import Site
from harness import observation, store, verdict
from harness.environment import cores
from harness.launch.entry import Place
from harness.launch.local import Launcher
from harness.launch.outcome import DISK_FULL, Failure, Outcome
from harness.probes import Evidence, probes
from harness.record import Record, Samples, Search, Status, Trial
from harness.references import References
from harness.search import Bisection, short, sized
from harness.statistics import largest_of_ranks

CPU_CAVEAT = "cpu: processes that share one machine's cores and talk through gloo prove a strategy and do not rank it"


class _Ended(Exception):
    """The cell has no measurement."""

    def __init__(self, status: Status, reason: str, *, phase: str, **fields: Any):
        super().__init__(reason)
        self.fields = {"status": status, "reason": reason, "phase": phase, **fields}


def run_cell(
    cell: Cell,
    *,
    launcher: Launcher,
    run_folder: Path,
    run_id: str,
    environment_id: str,
    site: Site,
    references: References,
    place: Place | None = None,
    instruments: Sequence[str] = (),
    on_phase: Callable[[str], None] | None = None,
) -> Record:
    """Verify and measure a cell; of one whose batch is searched for, the one with the largest microbatch that fits.

    Args:
        run_folder: gets `logs/<cell id>/rank<r>.log`.
        place: the devices it is confined to, where other cells run beside it.
        instruments: see `harness.worker`; for tests.
        on_phase: told the name of each phase as it begins.

    Raises:
        harness.store.NoRoom: the disk is full, which says nothing of the cell.
        harness.launch.children.Stopped: the launcher was told to stop.
    """

    with contextlib.suppress(OSError):  # where the run folder is gone, logs have no file
        (run_folder / store.LOGS).mkdir(exist_ok=True)

    def attempt(one: Cell) -> _Attempt:
        logs = store.inside(run_folder, store.LOGS, one.id)
        return _Attempt(one, launcher, logs, site, references, list(instruments), place, on_phase)

    if cell.protocol.search:
        cell, found = _search(cell, attempt)
    else:
        found = attempt(cell).run()
    return Record(
        run_id=run_id,
        cell_id=cell.id,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        environment_id=environment_id,
        cell=cell,
        **found,
    )


def _search(cell: Cell, attempt: Callable[[Cell], _Attempt]) -> tuple[Cell, dict[str, Any]]:
    """The cell of the largest microbatch that fits and what was found of it; of one row, where not even that fits."""

    def trial(rows: int) -> Trial:
        return _trial(rows, attempt(short(sized(cell, rows))).run(only_try=True))

    bisection = Bisection(trial)
    while (rows := bisection.largest()) and (found := attempt(sized(cell, rows)).run())["status"] == "oom":
        bisection.reject(_trial(rows, found))
    if not rows:  # a trial was the last word: that of one row, or of a size that failed in another way
        rows = 1 if rows == 0 else bisection.trials[-1].rows
        last = next(t for t in reversed(bisection.trials) if t.rows == rows)
        found = {"status": last.status, "reason": last.reason, "durations": {"measure": last.seconds}}
    found["search"] = Search(asked=cell.id, trials=bisection.trials)
    return sized(cell, rows), found


def _trial(rows: int, found: dict[str, Any]) -> Trial:
    seconds = sum(found["durations"].values())
    return Trial(rows=rows, status=found["status"], reason=found.get("reason"), seconds=seconds)


class _Attempt:
    """One cell on its way; what is known of it gathers in `found`, the fields of its record."""

    def __init__(
        self,
        cell: Cell,
        launcher: Launcher,
        log_folder: Path,
        site: Site,
        references: References,
        instruments: list[str],
        place: Place | None,
        on_phase: Callable[[str], None] | None,
    ):
        self.cell, self.launcher, self.log_folder, self.site = cell, launcher, log_folder, site
        self.references, self.instruments, self.place, self.on_phase = references, instruments, place, on_phase
        self.found: dict[str, Any] = {"caveats": _caveats(cell, site, place), "durations": {}}
        # A CPU "device" is a core: more threads for fewer processes would compare machines, not strategies.
        self.threads = 1 if site.kind == "cpu" else max(1, cores() // cell.processes)
        self.left = cell.protocol.cell_limit

    def run(self, *, only_try: bool = False) -> dict[str, Any]:
        """Verify and measure, or `only_try` whether it fits. Returns `found`, with a status whatever happens."""
        try:
            if only_try:
                self._launch()
            else:
                self.verify()
                if self.cell.protocol.measure_steps:
                    self.measure()
            self.found["status"] = "ok"
        except _Ended as end:
            self.found.update(end.fields)
        except store.NoRoom:
            raise
        except Exception as error:  # whatever happens here, the cell must not vanish from the run
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise store.NoRoom(str(error)) from None
            message = f"the harness itself failed with {type(error).__name__}: {error}"
            self.found.update(status="crashed", reason=message, log_tail=traceback.format_exc())
        return self.found

    def verify(self) -> None:
        """Hold the cell against its reference."""
        try:
            reference = self.references.get(self.cell, self.threads, self.place)
        except UsageError as error:
            raise _Ended("crashed", f"the single-device reference failed: {error}", phase="verify") from None
        if isinstance(reference, Failure):
            _need_room(reference)
            reason = f"the single-device reference failed: {reference.reason}"
            raise _Ended(reference.status, reason, phase="verify", log_tail=reference.log_tail)
        verified = self.cell.model_copy(update={"model": reference["model"]})
        findings = self._run("verify", verified, {"verify": self.cell.protocol.verify_limit}, reference=reference)
        self.reference = reference
        verification = verdict.judge(findings, reference, precision=self.cell.precision)
        self.found["verification"] = verification
        still = verdict.unmoved(findings, reference, precision=self.cell.precision)
        if still:
            names = still[0] + (f" and {len(still) - 1} more" if still[1:] else "")
            caveat = f"unverified: {names} must not move and do not, which is all that is known of their gradients"
            self.found["caveats"].append(caveat)
        if verification.verdict == "failed":
            raise _Ended("diverged", f"not the single-device step: {verification.why}", phase="verify")

    def measure(self) -> None:
        """Observe, time and probe the cell."""
        ranks = self._launch()
        self.found["caveats"] += dict.fromkeys(caveat for rank in ranks for caveat in rank["caveats"])
        findings = [rank["finding"] for rank in ranks]
        observed = observation.merge(findings, knobs=ranks[0]["knobs"], data=ranks[0]["data"])
        self.found["observed"] = observed
        own = {"changed_dtypes": ranks[0]["changed_dtypes"], "repeats": ranks[0]["repeats"]}
        self._refuse(observation.problem(observed, findings, self.cell, **own), "probe")
        self._refuse(verdict.disagreement([rank["digests"] for rank in ranks]), "measure")
        self._refuse(self._strayed([rank["first_losses"] for rank in ranks]), "measure")
        self._refuse(self._skipped(ranks[0]["skipped"], len(ranks[0]["step_seconds"])), "measure")
        loss = _mean([rank["final_loss"] for rank in ranks])
        if loss is None or not math.isfinite(loss):
            self._refuse(f"the loss was {loss} after the last timed step", "measure")
        steps = [rank["step_seconds"] for rank in ranks]
        recomputed = sum(f["recomputed_flops"] for f in findings if f["coordinates"]["tp"] == 0)
        evidence = Evidence(
            cell=self.cell,
            observed=observed,
            step_seconds=steps,
            wall_seconds=[rank["wall_seconds"] for rank in ranks],
            final_loss=loss,
            loss_after_samples=_mean([rank["loss_after_samples"] for rank in ranks]),
            flops={**ranks[0]["flops"], "recomputed": recomputed},
            device_name=ranks[0]["device_name"],
            readings={name: [rank["readings"][name] for rank in ranks] for name in ranks[0]["readings"]},
        )
        self.found["samples"] = Samples(step_seconds=largest_of_ranks(steps), warmup_seconds=ranks[0]["warmup_seconds"])
        for probe in probes().values():
            self.found.setdefault("metrics", {}).update(probe.metrics(evidence))

    def _launch(self) -> list[dict[str, Any]]:
        limit = self.cell.protocol.measure_limit
        return self._run("measure", self.cell, {"probe": limit, "warmup": limit, "measure": limit})

    def _strayed(self, losses: list[list[float | None]]) -> str | None:
        """Where the timed engine, with the cell's own optimizer, left the way of a single device; None if it did not.

        A stand-in for the model says nothing of its losses, nor does a step that is not comparable.
        """
        if self.reference["stand_in"] or self.found["verification"].verdict != "passed":
            return None
        return verdict.strayed(losses, self.reference, precision=self.cell.precision)

    def _skipped(self, skipped: int, steps: int) -> str | None:
        """Why steps that loss scaling left out spoil the measurement; a few are a caveat."""
        if skipped == steps:
            return f"loss scaling left out all {steps} timed steps"
        if skipped:
            self.found["caveats"].append(f"skipped: loss scaling left out {skipped} of {steps} timed steps, which are shorter")
        return None

    def _refuse(self, problem: str | None, phase: str) -> None:
        if problem is not None:
            raise _Ended("diverged", problem, phase=phase)

    def _run(self, task: str, cell: Cell, limits: dict[str, float], **job: Any) -> list[dict[str, Any]]:
        """The answers of all ranks of one launch."""
        payload = {
            "task": task,
            "cell": cell.model_dump(mode="json", by_alias=True),
            "device": self.site.kind,
            "threads": self.threads,
            "memory_bytes": self.site.device_memory_bytes,
            "instruments": self.instruments,
            **job,
        }
        begun = time.monotonic()
        outcome = self.launcher.run(
            "harness.worker:run",
            payload,
            processes=self.cell.processes,
            log_folder=self.log_folder,
            limits={"build": self.cell.protocol.build_limit, **limits},
            within=self.left,
            place=self.place,
            on_phase=self.on_phase,
        )
        self.left -= time.monotonic() - begun
        self._spend(outcome)
        self.found["caveats"] += (remark for remark in outcome.remarks if remark not in self.found["caveats"])
        failure = outcome.failure
        if failure is not None:
            _need_room(failure)
            where = {"failed_rank": failure.rank, "log_tail": failure.log_tail}
            raise _Ended(failure.status, failure.reason, phase=failure.phase, **where)
        return outcome.answers

    def _spend(self, outcome: Outcome) -> None:
        durations = self.found["durations"]
        for phase, seconds in outcome.durations.items():
            durations[phase] = durations.get(phase, 0.0) + seconds


def _mean(values: Sequence[float | None]) -> float | None:
    """Over the ranks that have one; None where none has."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _need_room(failure: Failure) -> None:
    """See that it was not a full disk that made a process fail.

    Raises:
        harness.store.NoRoom: it was.
    """
    said = failure.message or failure.log_tail.strip().rpartition("\n")[2]
    if failure.status == "crashed" and DISK_FULL.search(said):
        raise store.NoRoom(failure.reason)


def _caveats(cell: Cell, site: Site, place: Place | None) -> list[str]:
    found = []
    if place is not None:
        devices = ", ".join(map(str, place.devices))
        found.append(f"parallel: other cells ran beside this one, which had {place.kind} devices {devices}")
    if site.kind != "cpu":
        return found
    found.insert(0, CPU_CAVEAT)
    if cell.offload != "none":
        found.append(f"offload: the host's memory is the device's here, so that {cell.offload} offload saves none of it")
    count = site.count if place is None else len(place.devices)
    if cell.processes > count:
        found.append(f"oversubscribed: {cell.processes} processes on {count} cores")
    return found
