"""Products in fp8 are refused where nothing can multiply them; emulated, they are close to those in fp32."""

import pytest
import torch

from benchmarks.compose import illegal
from benchmarks.techniques import float8
from tests.benchmarks.techniques.test_checkpointing import part
from tests.parity.conftest import SITE, cell

GPUS = SITE.model_copy(update={"kind": "cuda"})


def test_what_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch):
    assert "need the tensor cores of a GPU" in illegal(cell("single", precision="fp8"), SITE)
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: None)
    assert "pip install torchao" in illegal(cell("single", precision="fp8"), GPUS)
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: object())
    assert illegal(cell("dp=2:fsdp", precision="fp8"), GPUS) is None
    assert "leave out tp" in illegal(cell("tp=2:hand", precision="fp8"), GPUS)
    assert "blocks of resnet-tiny have none" in illegal(cell("single", precision="fp8", model="resnet-tiny"), GPUS)


def test_emulated_products_are_close():
    pytest.importorskip("torchao")
    tokens = torch.arange(64).view(4, 16)
    outputs, names = [], []
    for emulated in (False, True):
        made = part()
        if emulated:
            float8.apply_float8(made, emulate=True)
        names.append([name for name, _ in made.module.named_parameters()])
        outputs.append(made.module(tokens))
    assert names[0] == names[1]
    error = (outputs[1] - outputs[0]).norm() / outputs[0].norm()
    assert 1e-4 < error < 0.1
