"""Loss scaling against torch's own scaler, and precision as dtypes."""

import pytest
import torch
from torch import nn

from benchmarks.techniques.precision import PRECISIONS, LossScaler, apply_precision

CPU = torch.device("cpu")


def test_what_names_mean():
    dtypes = {n: (p.parameters, p.compute, p.reduction, p.optimizer_state) for n, p in PRECISIONS.items()}
    full = torch.float32
    assert dtypes == {
        "fp32": (full, full, full, full),
        "bf16": (full, torch.bfloat16, full, full),
        "fp16": (full, torch.float16, full, full),
        "fp8": (full, torch.bfloat16, full, full),
    }


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_module_computes_in_the_dtype_and_keeps_its_parameters(name: str, dtype: torch.dtype):
    module = nn.Linear(4, 4)
    apply_precision(module, PRECISIONS[name], "cpu")
    assert module(torch.ones(2, 4)).dtype == dtype
    assert module.weight.dtype == torch.float32


def test_the_scale_moves_as_in_torch():
    ours = LossScaler(2.0**16, CPU, None)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for overflow in [True, False, True, True, *[False] * 2001, True, *[False] * 2000]:
        theirs.scale(torch.zeros(()))  # its scale comes to life with the first use
        weight.grad = torch.full((3,), torch.inf if overflow else 1.0)
        gradient = weight.grad.clone()
        theirs.step(optimizer)
        theirs.update()
        found = ours.unscale([gradient])
        ours.adjust(found)
        assert found == overflow
        assert ours.value == theirs.get_scale()


def test_gradients_come_back_unscaled():
    scaler = LossScaler(1024.0, CPU, None)
    gradient = torch.tensor([1024.0, -512.0])
    assert scaler.unscale([gradient]) is False
    assert gradient.tolist() == [1.0, -0.5]
    assert scaler.scale(torch.tensor(2.0)).item() == 2048.0


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_one_bad_element_is_enough(bad: float):
    gradients = [torch.ones(5), torch.ones(7)]
    gradients[1][3] = bad
    assert LossScaler(2.0, CPU, None).unscale(gradients) is True
