"""Reads YAML that anybody may have written: plain values only, of bounded size, and each key once. Imports no torch."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.errors import UsageError

MOST_BYTES = 2**20


def read(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        UsageError: it cannot be read, is too large, is no YAML, or holds more than plain values.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than such a file may be, {MOST_BYTES} bytes: make several of it")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}; give a YAML file") from None
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise UsageError(f"cannot read {path}: it is nested too deeply; write it flatter") from None
    except (yaml.YAMLError, ValueError) as error:  # PyYAML lets a date of month 99 through as a ValueError
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())}; write valid YAML") from None


class _Loader(yaml.SafeLoader):
    """Safe, and refuses a key that stands twice, which YAML itself would drop without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} cannot be a key", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
