"""github-action-benchmark, tool `customBiggerIsBetter`: throughput."""

from harness.export._action import entries
from harness.store import Run


def export(run: Run) -> str:
    """JSON; see `harness.export._action`."""
    return entries(run, ("tokens_per_second", "samples_per_second"))
