"""Scaling curves found in a table of cells: which layouts were run on several device counts, and how efficient they stayed.

A curve is *strong* where the global batch is the same on every device count, *weak* where the batch per device is.
Which there are is read off the cells. With throughput T in tokens or samples per second on n devices, against b devices:

    speedup = T(n) / T(b)        efficiency = speedup / (n / b)

which holds for both kinds, as T counts those of the whole batch. The base b is the single device where it was run under
the same conditions, else the smallest device count of the curve.

The serial fraction s is fitted by least squares to Amdahl's law, 1 / speedup = s + (1 - s) / p with p = n / b, for
strong curves (Amdahl 1967), and to Gustafson's, speedup = p - s (p - 1), for weak ones (Gustafson 1988).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pandas as pd

Array = TypeVar("Array", np.ndarray, pd.Series)

SAME = ["run", "model", "technique", "conditions"]
"""What all cells of a curve share, beside the batch."""
CURVE = [*SAME, "kind", "batch", "series", "microbatches"]
"""What all points of a curve share; its single device takes part under the series and microbatches of the others."""
FEWEST_FITTED = 3
COLUMNS = [*SAME, "kind", "batch", "microbatches", "series", "axes", "devices", "layout", "cell_id", "throughput",
           "throughput_low", "throughput_high", "throughput_unit", "base_layout", "base_devices", "speedup", "efficiency",
           "serial_fraction"]  # fmt: skip


def curves(table: pd.DataFrame) -> pd.DataFrame:
    """One row per point of a curve; verified cells alone are points.

    `batch` is the global batch of a strong curve and the batch per device of a weak one. Where one device count was run
    with several splits of the degrees (2x4, 4x2), the fastest is the point.
    """
    needed = [column for column in COLUMNS if column in table] + ["global_batch"]
    cells = table.loc[table["verified"] & table["throughput"].notna(), needed]
    batches = {
        "strong": cells["global_batch"].astype("float64"),
        "weak": cells["global_batch"] / cells["devices"].astype("float64"),
    }
    found = [_curves(cells.assign(kind=kind, batch=batch)) for kind, batch in batches.items()]
    return pd.concat(found, ignore_index=True)[COLUMNS] if len(cells) else pd.DataFrame(columns=COLUMNS)


def _curves(cells: pd.DataFrame) -> pd.DataFrame:
    """The points of all curves of one kind."""
    single = cells["series"] == "single"
    spread = cells[~single]
    points = pd.concat([_starts(cells[single], spread), spread], ignore_index=True)
    points = points.sort_values("throughput", ascending=False, kind="stable").drop_duplicates([*CURVE, "devices"])
    # Curves stay in the order of the table, in which their first spread cells stand.
    order = spread.drop_duplicates(CURVE)[CURVE].reset_index(drop=True).rename_axis("curve").reset_index()
    points = points.merge(order, on=CURVE).sort_values(["curve", "devices"], kind="stable")
    points = points[points.groupby("curve")["devices"].transform("size") > 1]
    return _against_base(points)


def _starts(singles: pd.DataFrame, spread: pd.DataFrame) -> pd.DataFrame:
    """The single device of each curve that has one."""
    wanted = spread.drop_duplicates(CURVE)[[*CURVE, "axes"]]
    singles = singles.sort_values("microbatches", kind="stable").drop(columns=["series", "axes"])
    group = [*SAME, "kind", "batch"]
    alike = wanted.merge(singles.drop_duplicates([*group, "microbatches"]), on=[*group, "microbatches"])
    # A single device gains nothing from microbatches: where it was not run with as many, the fewest stand in.
    fewest = wanted.merge(singles.drop(columns="microbatches").drop_duplicates(group), on=group)
    return pd.concat([alike, fewest]).drop_duplicates(CURVE)


def _against_base(points: pd.DataFrame) -> pd.DataFrame:
    base = points.groupby("curve", sort=False)[["layout", "devices", "throughput"]].transform("first")
    speedup = points["throughput"] / base["throughput"]
    times = points["devices"].astype("float64") / base["devices"].astype("float64")
    kind = points["kind"].iloc[0] if len(points) else "strong"
    across, up = _terms(kind, times, speedup)
    sums = pd.DataFrame({"xy": across * up, "xx": across * across}).groupby(points["curve"]).transform("sum")
    enough = points.groupby("curve")["devices"].transform("size") >= FEWEST_FITTED
    return points.assign(
        base_layout=base["layout"],
        base_devices=base["devices"],
        speedup=speedup,
        efficiency=speedup / times,
        serial_fraction=(sums["xy"] / sums["xx"]).where(enough),
    )


def serial_fraction(kind: str, times: list[float], speedup: list[float]) -> float:
    """The fitted share of the work that does not spread; NaN below three points, where a fit says nothing.

    Args:
        kind: `strong` or `weak`.
        times: devices as a multiple of the base's, the base's own 1 among them.
        speedup: throughput as a multiple of the base's, in the same order.
    """
    if len(times) < FEWEST_FITTED:
        return float("nan")
    across, up = _terms(kind, np.array(times), np.array(speedup))
    return float((across * up).sum() / (across * across).sum())


def _terms(kind: str, times: Array, speedup: Array) -> tuple[Array, Array]:
    """The law as a line through the origin, up = s * across."""
    if kind == "strong":
        return 1 - 1 / times, 1 / speedup - 1 / times
    return times - 1, times - speedup


def fitted(kind: str, times: np.ndarray, serial: float) -> np.ndarray:
    """The speedup that the fitted law gives for `times` the base's devices."""
    if kind == "strong":
        return 1 / (serial + (1 - serial) / times)
    return times - serial * (times - 1)
