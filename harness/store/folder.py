"""A run folder as a place: made whole or not at all, held by one process, left by no path. Imports no torch."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from harness.record import SCHEMA

RUN, ENVIRONMENT, RECORDS, TORN, RETRIED, LOGS = (
    "run.json",
    "environment.json",
    "records.jsonl",
    "records.torn",
    "records.retried",
    "logs",
)


def check_new(folder: Path) -> None:
    """See whether a run could be written to `folder`, leaving nothing there.

    Raises:
        UsageError: it holds another run or other files, is no folder, or is not writable.
    """
    try:
        if (folder / RUN).exists():
            with locked(folder):
                raise UsageError(
                    f"output folder '{folder}' holds another run: give --out a new or empty folder, "
                    f"or go on with that run by --resume '{folder}'"
                )
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"output folder '{folder}' is a file: give --out a new or empty folder")
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"output folder '{folder}' holds other files: give --out a new or empty folder")
        above = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    except OSError as error:
        raise _not_writable(folder, error) from None
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(
            f"output folder '{folder}' cannot be written: '{above}' is not a writable folder; give --out another place"
        )


def create(folder: Path, run: dict[str, Any], environment: dict[str, Any]) -> None:
    """Make a run folder.

    Raises:
        UsageError: see `check_new`; or another process made one there just now.
    """
    check_new(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            check_new(folder)
            (folder / LOGS).mkdir()
            write_json(folder / ENVIRONMENT, environment)
            (folder / RECORDS).touch()
            write_json(folder / RUN, {"schema": SCHEMA, **run})  # last: what has a run.json is a whole run folder
    except OSError as error:
        raise _not_writable(folder, error) from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for oneself, so that no second process runs in it meanwhile.

    Raises:
        UsageError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"run '{folder}' is still going on in another process{_holder(folder)}: wait for it, or stop it first"
            ) from None
        yield
    finally:
        os.close(descriptor)


def holder() -> dict[str, Any]:
    """What `run.json` says of the process that runs in its folder."""
    return {"pid": os.getpid(), "host": platform.node()}


def _holder(folder: Path) -> str:
    with contextlib.suppress(UsageError, KeyError):
        run = read_json(folder / RUN)
        return f", pid {run['pid']} on {run['host']}"
    return ""


def inside(folder: Path, *names: str) -> Path:
    """A path below a run folder.

    Raises:
        UsageError: a name, or a link on the way, leads out of the folder.
    """
    path = folder.joinpath(*names)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"'{path}' leads out of the run folder '{folder}': take that link away, or start a new run")
    return path


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a small JSON file, whole or not at all."""
    half = path.with_name(path.name + ".new")
    with half.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON file of a run.

    Raises:
        UsageError: it is not there, or holds something else.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read '{path}': {error}; give a folder that 'hpbench run' wrote") from None


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"output folder '{folder}' cannot be written: {error.strerror}; give --out another place")
