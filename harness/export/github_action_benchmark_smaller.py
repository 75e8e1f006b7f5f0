"""github-action-benchmark, tool `customSmallerIsBetter`: step times and peaks of memory."""

from harness.export._action import entries
from harness.store import Run


def export(run: Run) -> str:
    """JSON; see `harness.export._action`."""
    return entries(run, ("step_seconds", "peak_memory_bytes"))
