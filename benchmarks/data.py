"""Real text as bytes, and from it the same global batches in the same order for every layout and world size.

By default the text is the source of Python's own standard library, which every machine has; its digest tells whether
two machines trained on the same. Imports torch only where tensors are made.
"""

from __future__ import annotations

import hashlib
import os
import random
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cell import STANDARD_LIBRARY
from benchmarks.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.contract import Batch

STANDARD_LIBRARY_BYTES = 4 * 2**20
"""How much of the standard library is read: enough for any benchmark, read in a moment."""
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_WHAT_TO_DO = "give the path of a readable text file with --text, or leave it out for the source of Python's standard library"


def check_source(source: str, sequence: int) -> None:
    """See that `source` holds at least one sample, without reading it.

    Args:
        source: `python-stdlib`, or a path.
        sequence: tokens per sample; a sample takes one byte more, the target of its last token.

    Raises:
        UsageError: it is no file, cannot be read, or is too short.
    """
    if source == STANDARD_LIBRARY:
        size = sum(path.stat().st_size for path in _library_files())
    else:
        path = Path(source)
        if not path.exists():
            raise UsageError(f"text file {source!r} does not exist: {_WHAT_TO_DO}")
        if not path.is_file():
            raise UsageError(f"text {source!r} is not a file: {_WHAT_TO_DO}")
        if not os.access(path, os.R_OK):
            raise UsageError(f"text file {source!r} may not be read by this user: {_WHAT_TO_DO}")
        size = path.stat().st_size
    _check_length(source, size, sequence)


class Text:
    """A text that hands out batches.

    Args:
        source: `python-stdlib`, or a path.
        seed: with the step's number it decides which samples a batch has.

    Raises:
        UsageError: what `check_source` raises.
    """

    def __init__(self, source: str, seed: int):
        self._source, self._seed = source, seed
        check_source(source, sequence=1)
        self._bytes = _read(source)

    def batch(self, step: int, rows: int, sequence: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """The global batch of one step: inputs and next-token targets, each (rows, sequence), int64, on the CPU.

        A row starts anywhere in the text, drawn from seed and step alone. A token is a byte, see `spread`.

        Raises:
            UsageError: the text is too short for a row, or the vocabulary for a byte.
        """
        import torch

        if vocabulary < 256:
            raise UsageError(f"a vocabulary of {vocabulary} cannot hold bytes: give a model with at least 256 tokens")
        _check_length(self._source, len(self._bytes), sequence)
        draw = random.Random(f"{self._seed}/{step}")
        starts = [draw.randrange(len(self._bytes) - sequence) for _ in range(rows)]
        taken = bytearray().join(self._bytes[start : start + sequence + 1] for start in starts)
        tokens = spread(torch.frombuffer(taken, dtype=torch.uint8).view(rows, sequence + 1).long(), vocabulary)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def describe(self) -> dict[str, str | int]:
        """What a record says of the text: `source`, `sha256` of its bytes, and their number `bytes`."""
        return {"source": self._source, "sha256": _digest(self._source), "bytes": len(self._bytes)}


def spread(values: Tensor, vocabulary: int) -> Tensor:
    """The token of each byte: a fixed, reversible mixing of 0 to 255, stretched over the vocabulary.

    Text is nearly all ASCII, the lower half of bytes. Left where they are its tokens would all lie in the first part of
    any vocabulary, and what happens in the parts of other tensor parallel ranks would never be seen.
    """
    return (values * 167 + 13) % 256 * (vocabulary // 256)


def share(inputs: Tensor, targets: Tensor, dp_rank: int, dp_degree: int) -> Batch:
    """The contiguous rows of a global batch that data rank `dp_rank` of `dp_degree` trains on."""
    from benchmarks.contract import Batch

    rows, rest = divmod(inputs.size(0), dp_degree)
    assert rest == 0, f"{inputs.size(0)} rows over {dp_degree} data ranks"
    mine = slice(dp_rank * rows, (dp_rank + 1) * rows)
    return Batch(inputs[mine], targets[mine])


def _check_length(source: str, size: int, sequence: int) -> None:
    if size < sequence + 1:
        raise UsageError(
            f"text {source!r} has {size} bytes: a sequence of {sequence} tokens needs {sequence + 1}; "
            "give a longer text or a shorter sequence"
        )


@cache
def _read(source: str) -> bytes:
    if source != STANDARD_LIBRARY:
        return Path(source).read_bytes()
    return b"".join(path.read_bytes() for path in _library_files())[:STANDARD_LIBRARY_BYTES]


@cache
def _digest(source: str) -> str:
    return hashlib.sha256(_read(source)).hexdigest()


@cache
def _library_files() -> tuple[Path, ...]:
    """The source files that are read: those of the library's own folder by name, then those of the folders below."""
    library = Path(sysconfig.get_path("stdlib"))
    files, size = [], 0
    for folder, below, names in os.walk(library):
        below[:] = sorted(set(below) - _NOT_LIBRARY)
        for name in sorted(names):
            # Build settings differ between machines with the same Python.
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                files.append(Path(folder, name))
                size += files[-1].stat().st_size
        if size >= STANDARD_LIBRARY_BYTES:
            break
    if not files:
        raise UsageError(f"no source of Python's standard library under {str(library)!r}: give a text file with --text")
    return tuple(files)
