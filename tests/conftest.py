"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from benchmarks import registry
from harness.launch.local import Launcher

# Examples are the same in every run, and how long one takes is the machine's affair.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# A shell starts what it runs in the background with Ctrl-C ignored, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

IMPLEMENTATIONS = tuple(
    f"benchmarks.{folder}.{name.replace('-', '_')}" for folder in registry.AXES.values() for name in registry.names(folder)
)


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """One launcher for all tests; its server has torch and all implementations loaded."""
    with Launcher(IMPLEMENTATIONS) as started:
        yield started
