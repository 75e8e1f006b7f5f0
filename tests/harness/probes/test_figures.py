"""Metrics from evidence written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cell import Cell
from harness.probes import Evidence, flops, memory, probes, step_time
from harness.record import Observed


def evidence(**fields: Any) -> Evidence:
    cell = {"layout": "dp=2:ddp", "devices": 2, "processes": 2, "batch": {"global": 8, "sequence": 16}}
    given: dict[str, Any] = {
        "cell": Cell.model_validate(cell),
        "observed": Observed(dtypes={"compute": "bf16"}),
        "step_seconds": [[0.1, 0.2, 0.3], [0.2, 0.1, 0.3]],
        "wall_seconds": [0.6, 0.8],
        "final_loss": 2.5,
        "loss_after_samples": None,
        "flops": {"model": 3_000, "model_full_attention": 3_600, "recomputed": 1_000},
        "device_name": "cpu",
        "readings": {},
    }
    return Evidence(**{**given, **fields})


def test_probes_are_found_by_their_files() -> None:
    assert set(probes()) >= {"step_time", "memory", "flops"}


def test_step_time_and_throughput() -> None:
    found = step_time.metrics(evidence())
    assert found["step_seconds"].value == 0.2  # of 0.2, 0.2, 0.3
    assert found["step_seconds"].per_rank == [0.2, 0.2]
    # 3 steps of 8 samples of 16 tokens in 0.8 s, on 2 devices.
    assert found["samples_per_second"].value == pytest.approx(30)
    assert found["tokens_per_second"].value == pytest.approx(480)
    assert found["tokens_per_second_per_device"].value == pytest.approx(240)
    assert found["final_loss"].value == 2.5
    assert "loss_after_samples" not in found
    assert step_time.metrics(evidence(loss_after_samples=3.5))["loss_after_samples"].value == 3.5
    for metric in (found["step_seconds"], found["tokens_per_second"]):
        assert metric.low is not None and metric.high is not None and metric.low <= metric.value <= metric.high


def test_images_are_no_tokens() -> None:
    cell = Cell.model_validate({"model": "mlp-tiny", "batch": {"global": 8}})
    found = step_time.metrics(evidence(cell=cell))
    assert found["samples_per_second"].value == pytest.approx(30)
    assert not any("token" in name for name in found)


def test_flops_are_those_of_all_devices() -> None:
    found = flops.metrics(evidence())
    # 3 steps in 0.8 s.
    assert found["model_flops_per_second"].value == pytest.approx(3_000 * 3 / 0.8)
    assert found["model_flops_per_second_full_attention"].value == pytest.approx(3_600 * 3 / 0.8)
    assert found["hardware_flops_per_second"].value == pytest.approx(4_000 * 3 / 0.8)
    assert "mfu" not in found


def test_utilisation_is_told_for_devices_in_the_tables_alone() -> None:
    amounts = {"model": 989_400_000_000_000, "model_full_attention": 0, "recomputed": 0}
    found = flops.metrics(evidence(device_name="NVIDIA H200", flops=amounts))
    # 3 steps of 989.4 TFLOP in 0.8 s on two devices with a peak of 989.4 TFLOP/s each.
    assert found["mfu"].value == pytest.approx(3 / 0.8 / 2)
    assert flops.peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12
    assert flops.peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None
    assert flops.peak_flops("NVIDIA GeForce RTX 4090", "bf16") is None


def anatomy(total: int, **purposes: int) -> dict[str, int]:
    return {"total": total, "parameters": 0, "gradients": 0, "optimizer_state": 0, "activations": 0, "other": 0, **purposes}


def test_memory_on_the_cpu_is_what_was_tracked() -> None:
    readings = [
        {"anatomy": anatomy(100, parameters=40, activations=60), "resident": 5_000},
        {"anatomy": anatomy(90, parameters=70, activations=20), "resident": 6_000},
    ]
    found = memory.metrics(evidence(readings={"memory": readings}))
    assert (found["peak_memory_bytes"].value, found["peak_memory_bytes"].per_rank) == (100, [100.0, 90.0])
    assert (found["memory_parameters_bytes"].value, found["memory_activations_bytes"].value) == (70, 60)
    assert found["peak_resident_bytes"].value == 6_000
    assert "peak_reserved_bytes" not in found


def test_memory_on_a_gpu_is_what_its_allocator_says() -> None:
    reading = {"anatomy": anatomy(100, parameters=90, other=10), "resident": 1, "allocated": 128, "reserved": 200}
    found = memory.metrics(evidence(readings={"memory": [reading]}))
    assert (found["peak_memory_bytes"].value, found["peak_reserved_bytes"].value) == (128, 200)
    assert found["memory_other_bytes"].value == 38  # the total is 128
    assert "peak_resident_bytes" not in found


def test_an_unprobed_cell_has_no_memory_figures() -> None:
    assert memory.metrics(evidence()) == {}


def test_the_measured_ceiling_is_that_of_the_slowest_rank() -> None:
    readings = [{"matmul_flops_per_second": 5e9}, {"matmul_flops_per_second": 4e9}]
    found = flops.metrics(evidence(readings={"flops": readings}))["matmul_flops_per_second"]
    assert (found.value, found.per_rank) == (4e9, [5e9, 4e9])
