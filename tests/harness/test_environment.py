"""What is told of the machine."""

from __future__ import annotations

from typing import Any

from harness.environment import cores, detect, environment_id, versions
from harness.launch.local import Launcher

FACTS: dict[str, Any] = {
    "host": "a",
    "suite_commit": "123",
    "processor": "x",
    "memory_bytes": 64 * 2**30,
    "site": {"frameworks": {"torch": "2.13.0"}, "memory_bytes": 64 * 2**30},
}


def test_the_live_site_has_this_machines_cores_and_frameworks(launcher: Launcher) -> None:
    site, facts = detect(launcher)
    assert facts["id"] == detect(launcher)[1]["id"]
    assert facts["site"] == site.model_dump(mode="json")
    assert site.frameworks["torch"] == versions(("torch",))["torch"]
    assert site.memory_bytes > 0
    if site.kind == "cpu":
        assert site.count == cores()


def test_the_id_is_that_of_what_figures_depend_on() -> None:
    same = {**FACTS, "host": "b", "suite_commit": "456", "memory_bytes": 64 * 2**30 - 4096}
    assert environment_id(same) == environment_id(FACTS)
    assert environment_id({**FACTS, "processor": "y"}) != environment_id(FACTS)
    assert environment_id({**FACTS, "site": {"frameworks": {"torch": "2.14.0"}}}) != environment_id(FACTS)


def test_what_is_not_installed_has_no_version() -> None:
    assert versions(("no-such-distribution",)) == {}
