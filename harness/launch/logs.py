"""What a child prints: kept in files of bounded size, and its end in memory, so that a full disk or a deleted folder takes
neither the child nor the reason of its failure with it."""

from __future__ import annotations

import os
from pathlib import Path

MOST_BYTES = 8 * 2**20
"""Of one child's log: half of it in `rank<r>.log`, and what came just before in `rank<r>.log.before`."""
TAIL_BYTES = 4000


class Log:
    """The log of one child; what is in the file already stays."""

    problem: str | None = None
    """Why it is not in the file, if it is not."""

    def __init__(self, path: Path):
        self._path = path
        self._tail = b""
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("ab", buffering=0)
            self._size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            self.problem = str(error)

    def write(self, content: bytes) -> None:
        """Add what was printed; where the file is full, it becomes the one before, and the one before that is gone."""
        self._tail = (self._tail + content)[-TAIL_BYTES:]
        if self.problem:
            return
        try:
            if self._size + len(content) > MOST_BYTES // 2:
                self._file.close()
                self._path.replace(self._path.with_name(self._path.name + ".before"))
                self._file = self._path.open("ab", buffering=0)
                self._size = 0
            if self._file.write(content) != len(content):
                raise OSError("the disk is full")
            self._size += len(content)
        except OSError as error:
            self.problem = str(error)

    def tail(self) -> str:
        """The end of what was printed since this log was opened."""
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Nothing more is printed."""
        if hasattr(self, "_file"):
            self._file.close()
