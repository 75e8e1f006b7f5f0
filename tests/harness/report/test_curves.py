import math

import pytest

from benchmarks.cell import Batch
from harness.report.curves import curves, serial_fraction
from harness.report.frame import frame


def points(factory, *records):
    return curves(frame([factory.run(*records)]))


def test_strong_scaling_against_the_single_device(factory):
    records = [factory.record(layout, tokens=t) for layout, t in (("single", 1000), ("dp=2:ddp", 1800), ("dp=4:ddp", 3000))]
    found = points(factory, *records)
    assert set(found["kind"]) == {"strong"}
    assert list(found["devices"]) == [1, 2, 4]
    assert list(found["speedup"]) == [1.0, 1.8, 3.0]
    assert list(found["efficiency"]) == [1.0, 0.9, 0.75]
    assert set(found["base_layout"]) == {"single"}


def test_weak_scaling_is_found_where_the_batch_per_device_is_the_same(factory):
    measured = ((1, 1000), (2, 1900), (4, 3200))
    found = points(factory, *[factory.record(f"dp={n}:ddp", tokens=t, batch=Batch(global_size=8 * n)) for n, t in measured])
    assert set(found["kind"]) == {"weak"} and set(found["batch"]) == {8.0}
    assert list(found["efficiency"]) == [1.0, 0.95, 0.8]


def test_without_a_single_device_the_smallest_world_is_the_base(factory):
    found = points(factory, factory.record("dp=2:ddp", tokens=2000), factory.record("dp=8:ddp", tokens=6000))
    assert list(found["speedup"]) == [1.0, 3.0] and list(found["efficiency"]) == [1.0, 0.75]
    assert set(found["base_layout"]) == {"dp=2:ddp"}


def test_cells_that_are_not_verified_are_no_points(factory):
    records = [
        factory.record(tokens=1000),
        factory.record("dp=2:ddp", status="oom"),
        factory.record("dp=4:ddp", tokens=9999, verdict="not comparable"),
        factory.record("dp=8:ddp", tokens=4000),
    ]
    assert list(points(factory, *records)["devices"]) == [1, 8]


def test_one_device_count_is_no_curve(factory):
    assert points(factory, factory.record("dp=2:ddp"), factory.record("tp=2:hand")).empty


def test_of_several_splits_the_fastest_is_the_point(factory):
    found = points(
        factory,
        factory.record(tokens=1000),
        factory.record("tp=2:hand,dp=4:ddp", tokens=5000),
        factory.record("tp=4:hand,dp=2:ddp", tokens=3000),
    )
    assert list(found["layout"]) == ["single", "tp=2:hand,dp=4:ddp"]


def test_different_conditions_are_different_curves(factory):
    records = [factory.record(tokens=1000), factory.record("dp=2:ddp", precision="bf16"), factory.record("dp=4:ddp", clip=1.0)]
    assert points(factory, *records).empty


def test_serial_fraction_by_hand():
    # Amdahl with s = 0.1: speedup(p) = 1 / (0.1 + 0.9 / p)
    assert serial_fraction("strong", [1, 2, 4], [1, 1 / 0.55, 1 / 0.325]) == pytest.approx(0.1)
    # Gustafson with s = 0.2: speedup(p) = p - 0.2 (p - 1)
    assert serial_fraction("weak", [1, 2, 4], [1, 1.8, 3.4]) == pytest.approx(0.2)
    assert math.isnan(serial_fraction("strong", [1, 2], [1, 2]))
