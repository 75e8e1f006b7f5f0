"""The one exception for mistakes of the person at the keyboard, and the sentence it is made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Something was asked for that cannot be: what was given, what is possible, what to do.

    The command line prints the message as one sentence and exits with status 2.
    """


def unknown(kind: str, given: str, known: Iterable[str], where: str = "") -> UsageError:
    """A `UsageError` that names the nearest known value.

    Args:
        kind: what was misspelt, for example "model".
        given: the value as it was written.
        known: every value that would have been accepted.
        where: where it was written, for example "in suite cpu.yaml".
    """
    known = sorted(known)
    nearest = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    place = f" {where}" if where else ""
    return UsageError(f"unknown {kind} {given!r}{place}: known are {', '.join(known)}{hint}")
