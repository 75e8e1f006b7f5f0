"""Every cell of a suite as a test of pytest-benchmark, for those who know its options.

    pytest benchmarks [--suite gate] --benchmark-json before.json
    pytest benchmarks --benchmark-compare before.json --benchmark-compare-fail median:5%

A cell is verified, warmed up and timed as `hpbench run` does it, in processes of its own; its measured step times are then
handed to pytest-benchmark, which times nothing itself. A cell that cannot run is skipped, and one that is not the
single-device step fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from benchmarks.conftest import Measured
from harness.export import extra_info
from harness.plan import Planned


def test_cell(planned: Planned, measured: Measured, benchmark) -> None:
    if planned.reason:
        pytest.skip(planned.reason)
    record = measured.measure(planned)
    if record.status != "ok":
        pytest.fail(f"{record.status}: {record.reason}\n{record.log_tail or ''}", pytrace=False)
    samples = record.samples.step_seconds
    benchmark.group = record.cell.model
    benchmark.extra_info.update(extra_info(record))
    # No public way to hand in times: the fixture takes differences of what its timer says.
    benchmark._timer = replayed(samples)
    benchmark.pedantic(lambda: None, rounds=max(1, len(samples)), iterations=1)


def replayed(samples: Sequence[float]) -> Callable[[], float]:
    """A timer that says 0 at the start of each round and the measured time at its end."""
    readings = iter([reading for seconds in samples for reading in (0.0, seconds)])

    def recorded() -> float:
        return next(readings, 0.0)

    return recorded
