"""How figures and notes are written: the same in pictures, in the page and in `explain`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from harness.record import Metric

STATUS_WORDS = {
    "ok": "ok",
    "skipped": "skipped",
    "oom": "out of memory",
    "timeout": "timed out",
    "crashed": "crashed",
    "diverged": "diverged",
}
"""What stands in a picture where a figure would stand."""

CPU_SENTENCE = "CPU run: it proves the strategies and the harness and does not rank them."


def plain(text: str) -> str:
    """The text on one line, without control characters, which no SVG may hold."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def slug(text: str) -> str:
    """A file name made of `text`: letters, digits, dots and single hyphens."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "unnamed"


def shortened(text: str, longest: int) -> str:
    """The text, cut to `longest` characters with an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def number(value: float) -> str:
    """Three to four significant digits, thousands separated: 12,345 · 1,234 · 12.3 · 0.00123."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def scaled(value: float, unit: str) -> tuple[float, str]:
    """A value in the unit people read: bytes in KiB to TiB, seconds in µs to s, FLOP/s in G or T."""
    if unit == "bytes":
        steps = [(2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")]
    elif unit == "s":
        steps = [(1, "s"), (1e-3, "ms"), (1e-6, "µs")]
    elif unit == "FLOP/s":
        steps = [(1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1, "FLOP/s")]
    else:
        return 1, unit
    return next(((size, name) for size, name in steps if abs(value) >= size), steps[-1])


def amount(value: float, unit: str) -> str:
    """A value with its unit, for example `12.3 MiB`."""
    size, name = scaled(value, unit)
    return f"{number(value / size)} {name}"


def per_second(unit: str) -> str:
    """The name of an axis in `tokens/s` or `samples/s`."""
    return unit.replace("/s", " per second")


def with_interval(metric: Metric) -> str:
    """A metric with its 95 % interval where it has one, for example `12.3 ms (95 % interval 12.1 to 12.6)`."""
    if metric.low is None or metric.high is None:
        return amount(metric.value, metric.unit)
    size, _ = scaled(metric.value, metric.unit)
    return f"{amount(metric.value, metric.unit)} (95 % interval {number(metric.low / size)} to {number(metric.high / size)})"


def error(value: float | None) -> str:
    """A relative error, for example `2.1e-07`; a dash where there is none."""
    return "–" if value is None or value != value else f"{value:.1e}"


def caveat_word(caveat: str) -> str:
    """The word before a caveat's colon."""
    return caveat.partition(":")[0].strip()


def counted(words: Iterable[str], of: int) -> str:
    """How many of `of` cells carry each word, for example `cpu (all 12 cells), unstable (2 of 12)`."""
    found = Counter(words)
    counts = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    if of == 1:
        return ", ".join(sorted(found))
    return ", ".join(f"{word} (all {of:,} cells)" if n == of else f"{word} ({n:,} of {of:,})" for word, n in counts)
