"""Our models against the Hugging Face transformers library: written by others, from the same weights the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import models
from benchmarks.compose import illegal
from benchmarks.errors import UsageError
from benchmarks.reference import _whole
from harness.record import Record
from tests.parity.conftest import SITE, cell

TOKENS = torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["llama-tiny", "llama-tiny[tied=true,kv_heads=4]", "gpt2-tiny"])
def test_loss_and_every_gradient_agree(name: str):
    ours, theirs = models.load(name), models.load(f"hf-{name}")
    module, library = _whole(ours, seed=3), _whole(theirs, seed=3)
    losses = [m.loss(built(TOKENS[:, :-1]), TOKENS[:, 1:]) for m, built in ((ours, module), (theirs, library))]
    for loss in losses:
        loss.backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    gradients = {n: p.grad for n, p in module.named_parameters()}
    compared = 0
    for parameter_name, parameter in library.named_parameters():
        wanted = theirs.from_twin(parameter_name, lambda n: gradients[ours.tied.get(n, n)])
        assert (parameter.grad - wanted).norm() <= 1e-5 * max(wanted.norm(), 1e-3), parameter_name
        compared += parameter.numel()
    assert compared == ours.parameter_count()


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_work_and_ties_are_the_same(name: str):
    ours, theirs = models.load(name), models.load(f"hf-{name}")
    for causal in (False, True):
        assert theirs.training_flops(3, 17, causal=causal) == ours.training_flops(3, 17, causal=causal)
    assert len(theirs.blocks) == len(ours.blocks) and len(theirs.tied) == len(ours.tied)


def test_one_wrong_weight_is_seen():
    ours, theirs = models.load("llama-tiny"), models.load("hf-llama-tiny")
    module, library = _whole(ours, seed=3), _whole(theirs, seed=3)
    with torch.no_grad():
        next(p for n, p in library.named_parameters() if "k_proj" in n).mul_(1.01)
    losses = [m.loss(built(TOKENS[:, :-1]), TOKENS[:, 1:]).item() for m, built in ((ours, module), (theirs, library))]
    assert losses[0] != pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_configuration_of_the_users_own(tmp_path: Path, as_folder: bool):
    config = {"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = f"hf:{tmp_path if as_folder else tmp_path / 'config.json'}"
    model = models.load(name)
    assert len(model.blocks) == 2 and model.longest_sequence == 64
    assert _whole(model, seed=0)(TOKENS).shape == (2, 33, 300)
    assert models.reads_text(name)
    made = cell("pp=2:gpipe", model=name, batch={"global": 8, "sequence": 32})
    assert "1 units" in illegal(made, SITE)
    made = cell("tp=2:hand", model=name, batch={"global": 8, "sequence": 32})
    assert "use a data axis" in illegal(made, SITE)


@pytest.mark.parametrize("content", [None, "{}", '{"model_type": "no-such-thing"}', "no json"])
def test_a_configuration_that_cannot_be_read(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match="give the path of a config.json"):
        models.load(f"hf:{tmp_path}")


SHORT = {"warmup_steps": 1, "measure_steps": 1, "measure_seconds": 0, "probe": False}


@pytest.mark.parametrize(
    ("model", "layout", "fields"),
    [
        ("hf-llama-tiny", "dp=2:ddp", {}),
        ("hf-gpt2-tiny", "dp=2:fsdp", {"checkpointing": "full", "precision": "bf16"}),
        pytest.param("hf-llama-tiny", "dp=2:zero3", {"checkpointing": "full"}, marks=pytest.mark.slow),
        pytest.param("hf-gpt2-tiny", "dp=2:fairscale-fsdp", {"precision": "fp16"}, marks=pytest.mark.slow),
    ],
)
def test_the_data_axis_takes_them(run: Callable[..., Record], model: str, layout: str, fields: dict[str, str]):
    batch = {"global": 8, "microbatches": 2, "sequence": 32}
    record = run(cell(layout, model=model, batch=batch, clip=1.0, protocol=SHORT, **fields))
    assert record.status == "ok", record.reason
    assert record.verification.verdict == "passed"
    assert record.observed.checkpointed_blocks == (4 if fields.get("checkpointing") else 0)
