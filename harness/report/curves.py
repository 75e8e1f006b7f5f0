"""Scaling curves found in a table of cells: which layouts were run on several device counts, and how efficient they stayed.

A curve is *strong* where the global batch is the same on every device count, *weak* where the batch per device is.
Which there are is read off the cells. With throughput T in tokens per second on n devices, against b devices:

    speedup = T(n) / T(b)        efficiency = speedup / (n / b)

which holds for both kinds, as T counts all tokens. The base b is the single device where it was run under the same
conditions, else the smallest device count of the curve.

The serial fraction s is fitted by least squares to Amdahl's law, 1 / speedup = s + (1 - s) / p with p = n / b, for
strong curves (Amdahl 1967), and to Gustafson's, speedup = p - s (p - 1), for weak ones (Gustafson 1988).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

SAME = ["run", "model", "technique", "conditions"]
"""What all cells of a curve share, beside the batch."""
COLUMNS = [*SAME, "kind", "batch", "microbatches", "series", "axes", "devices", "layout", "cell_id", "tokens_per_second",
           "tokens_per_second_low", "tokens_per_second_high", "base_layout", "base_devices", "speedup", "efficiency",
           "serial_fraction"]  # fmt: skip


def curves(table: pd.DataFrame) -> pd.DataFrame:
    """One row per point of a curve; verified cells alone are points.

    `batch` is the global batch of a strong curve and the batch per device of a weak one. Where one device count was run
    with several splits of the degrees (2x4, 4x2), the fastest is the point.
    """
    needed = [column for column in COLUMNS if column in table] + ["global_batch"]
    cells = table.loc[table["verified"] & table["tokens_per_second"].notna(), needed]
    batches = {
        "strong": cells["global_batch"].astype("float64"),
        "weak": cells["global_batch"] / cells["devices"].astype("float64"),
    }
    found = []
    for kind, batch in batches.items():
        for _, group in cells.assign(kind=kind, batch=batch).groupby([*SAME, "batch"], sort=False):
            if group["devices"].nunique() > 1:
                found += list(_curves(group))
    return pd.concat(found, ignore_index=True)[COLUMNS] if found else pd.DataFrame(columns=COLUMNS)


def _curves(group: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The curves among cells that share everything but layout and microbatches."""
    singles = group[group["series"] == "single"].sort_values("microbatches")
    for (series, microbatches), cells in group[group["series"] != "single"].groupby(["series", "microbatches"], sort=False):
        # A single device gains nothing from microbatches: where it was not run with as many, the fewest stand in.
        alike = singles[singles["microbatches"] == microbatches]
        start = (
            (alike if len(alike) else singles)
            .head(1)
            .assign(series=series, microbatches=microbatches, axes=cells["axes"].iloc[0])
        )
        points = pd.concat([start, cells]).sort_values("tokens_per_second", ascending=False, kind="stable")
        points = points.drop_duplicates("devices").sort_values("devices")
        if len(points) > 1:
            yield _against_base(points)


def _against_base(points: pd.DataFrame) -> pd.DataFrame:
    base = points.iloc[0]
    speedup = points["tokens_per_second"] / base["tokens_per_second"]
    times = points["devices"].astype("float64") / base["devices"]
    return points.assign(
        base_layout=base["layout"],
        base_devices=base["devices"],
        speedup=speedup,
        efficiency=speedup / times,
        serial_fraction=serial_fraction(base["kind"], list(times), list(speedup)),
    )


def serial_fraction(kind: str, times: list[float], speedup: list[float]) -> float:
    """The fitted share of the work that does not spread; NaN below three points, where a fit says nothing.

    Args:
        kind: `strong` or `weak`.
        times: devices as a multiple of the base's, the base's own 1 among them.
        speedup: throughput as a multiple of the base's, in the same order.
    """
    if len(times) < 3:
        return float("nan")
    if kind == "strong":
        across = [1 - 1 / p for p in times]
        up = [1 / s - 1 / p for s, p in zip(speedup, times, strict=True)]
    else:
        across = [p - 1 for p in times]
        up = [p - s for s, p in zip(speedup, times, strict=True)]
    return sum(x * y for x, y in zip(across, up, strict=True)) / sum(x * x for x in across)


def fitted(kind: str, times: np.ndarray, serial: float) -> np.ndarray:
    """The speedup that the fitted law gives for `times` the base's devices."""
    if kind == "strong":
        return 1 / (serial + (1 - serial) / times)
    return times - serial * (times - 1)
