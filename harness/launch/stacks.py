"""Where a process that hangs was, read from the stacks that `faulthandler` wrote of it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

_FRAME = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\(most recent call first\):$", re.MULTILINE)
_OURS = re.compile(r"(^|/)(benchmarks|harness|tests)/")
_ENTRY = "harness/launch/entry.py"
_COLLECTIVES = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")
_WAIT = re.compile(r"\.wait\(")
"""On the innermost line: it waits for a transfer that was begun before, which is no Python either."""
_BACKWARD = "_engine_run_backward"
"""Where autograd's engine, which is no Python, may be waiting for gradients that it reduces."""


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where one process was."""

    text: str
    """For people, such as `all_reduce (measure.py:234 in _largest)`."""
    waits: str | None
    """The collective that it was waiting in; `backward` where that may be one of autograd's; None: neither."""


def whereabouts(stacks: str) -> Whereabouts | None:
    """Where the main thread was, or another one that waits in a collective; None where no stack was written."""
    threads = [list(_FRAME.finditer(text)) for text in _THREAD.split(stacks)[1:]]
    threads = [frames for frames in threads if frames]
    if not threads:
        return None
    main = next((frames for frames in threads if any(f["file"].endswith(_ENTRY) for f in frames)), threads[-1])
    for frames in [main, *(t for t in threads if t is not main)]:
        inside = [f["function"] for f in frames if f["file"].endswith(_COLLECTIVES)]
        if inside:
            public = next((name for name in inside if not name.startswith("_")), inside[0])
            return Whereabouts(text=f"{public} ({_place(frames)})", waits=public)
    if main[0]["function"] == _BACKWARD:
        return Whereabouts(text=f"backward ({_place(main)})", waits="backward")
    if _WAIT.search(linecache.getline(main[0]["file"], int(main[0]["line"]))):
        return Whereabouts(text=f"what was sent or received before ({_place(main)})", waits="wait")
    return Whereabouts(text=_place(main), waits=None)


def odd_one_out(found: Mapping[int, Whereabouts | None]) -> int | None:
    """The one rank that keeps the others waiting: all others wait in a collective, and it does not, or in another one than
    they do; None where that cannot be told."""
    waits = {rank: where.waits for rank, where in found.items() if where is not None}
    if len(waits) < len(found) or len(found) < 2:
        return None
    free = [rank for rank, name in waits.items() if name is None]
    if free:
        return free[0] if len(free) == 1 else None
    alone = [rank for rank, name in waits.items() if list(waits.values()).count(name) == 1]
    return alone[0] if len(alone) == 1 and len(found) > 2 else None


def _place(frames: Sequence[re.Match[str]]) -> str:
    """The innermost frame of this suite, or the innermost at all."""
    frame = next((f for f in frames if _OURS.search(f["file"])), frames[0])
    return f"{PurePath(frame['file']).name}:{frame['line']} in {frame['function']}"
