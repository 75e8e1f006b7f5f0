"""A site: a machine described as data. A live one is found by `harness.environment`; any other can be written down.

>>> Site.parse("8xcuda:80GiB").memory_bytes == 80 * 2**30
True
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from benchmarks.errors import UsageError

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class Site(BaseModel):
    """Where cells run."""

    model_config = ConfigDict(frozen=True)

    kind: str = "cpu"
    """`cpu` or `cuda`."""
    count: int = 1
    """Devices of that kind; for `cpu`, usable cores."""
    memory_bytes: int = 0
    """Memory of one device; for `cpu`, of the machine. 0: unknown."""
    device_memory_bytes: int = 0
    """What each process on CPUs may ask for, as if it were a device's memory (`--device-memory`). 0: what the machine has."""
    frameworks: dict[str, str] = {}
    """Installed frameworks and their versions: torch, deepspeed, fairscale, ..."""

    @classmethod
    def parse(cls, text: str) -> Site:
        """Read `<count>x<kind>:<memory>`, for example `8xcuda:80GiB` or `2xcpu:16GiB`.

        Raises:
            UsageError: the text has another form.
        """
        match = re.fullmatch(r"(\d+)x(cpu|cuda)(?::([0-9A-Za-z.]+))?", text)
        if match is None:
            raise UsageError(f"cannot read devices {text!r}: write <count>x<kind>:<memory>, for example 8xcuda:80GiB")
        return cls(kind=match[2], count=int(match[1]), memory_bytes=parse_bytes(match[3]) if match[3] else 0)

    @property
    def usable_bytes(self) -> int:
        """Memory that one process may fill. 0: unknown."""
        return self.device_memory_bytes or self.memory_bytes

    def __str__(self) -> str:
        memory = f":{self.memory_bytes / 2**30:.4g}GiB" if self.memory_bytes else ""
        return f"{self.count}x{self.kind}{memory}"


def parse_bytes(text: str) -> int:
    """Read an amount of memory such as `80GiB`.

    Raises:
        UsageError: no number with a known unit.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?i?B)", text)
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"cannot read memory {text!r}: write a number and a unit of {', '.join(_UNITS)}, for example 80GiB")
    return int(float(match[1]) * _UNITS[match[2]])
