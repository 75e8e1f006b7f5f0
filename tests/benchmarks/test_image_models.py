"""Sizes, FLOPs and mathematics of the models of images, each against something worked out apart from them."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import initialize, models
from benchmarks.cell import Cell
from benchmarks.compose import illegal
from benchmarks.contract import Chain, Model
from benchmarks.errors import UsageError
from benchmarks.models import resnet
from benchmarks.models._batch_norm import BatchNorm, synchronise
from benchmarks.reference import smooth, stand_in, verification_model
from benchmarks.site import Site
from tests.parity.conftest import cell

CPU = Site(kind="cpu", count=2)
SIZES = [name for name in models.names() if not models.reads_text(name)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def whole(model: Model) -> Chain:
    """The model with its seeded weights."""
    chain = Chain({unit: model.build(unit) for unit in model.units})
    with torch.no_grad():
        for name, parameter in chain.named_parameters():
            parameter.copy_(initialize.full(model, name, 0))
    return chain


def batch(model: Model, rows: int) -> tuple[Tensor, Tensor]:
    return model.samples(Cell(model=model.name)).batch(0, rows)


# ------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet-18", 11_689_512),  # torchvision's resnet18
        ("resnet-50", 25_557_032),  # torchvision's resnet50
        ("mlp-stack", 64 * 1024 + 1024 + 16 * (2 * 1024 * 2048 + 2048 + 1024) + 1024 * 10 + 10),
    ],
)
def test_parameter_count_is_the_published_one(name: str, count: int) -> None:
    assert models.load(name).parameter_count() == count


def test_the_wide_size_is_one_layer() -> None:
    model = models.load("mlp-wide")
    (block,) = model.blocks
    inside = sum(math.prod(shape) for name, shape in model.parameter_shapes.items() if name.startswith(block))
    assert inside > 0.999 * model.parameter_count() > 1e9


@pytest.mark.parametrize("name", SIZES)
def test_every_size_is_consistent(name: str) -> None:
    model = models.load(name)
    assert model.longest_sequence is None
    inputs, targets = batch(model, 2)
    assert (inputs.shape, inputs.dtype) == (model.example(2, 8).shape, model.example(2, 8).dtype)
    assert targets.shape == (2,)
    assert model.boundary("head", 2, 8) == (2, model.dimensions.classes)
    assert not dict(whole(models.load(name.split("-")[0] + "-tiny")).named_buffers()), "a buffer would have to be spread, too"


@pytest.mark.parametrize("name", ["resnet-tiny[image=100]", "resnet-tiny[classes=9]", "mlp-tiny[classes=9]"])
def test_dimensions_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="give"):
        models.load(name)


# ------------------------------------------------------------------------------------------------ FLOPs


@pytest.mark.parametrize(
    "name", ["mlp-tiny", "mlp-tiny[blocks=1,mlp=96]", "resnet-tiny", "resnet-tiny[bottleneck=true,stage2=2]"]
)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    model, rows = models.load(name), 3
    chain, (inputs, targets) = whole(model), batch(model, rows)
    x = inputs
    for unit in model.units:
        with FlopCounterMode(display=False) as counter:
            x = chain.get_submodule(unit)(x)
        assert counter.get_total_flops() == model.forward_flops(unit, rows, 64, causal=True)
        assert tuple(x.shape) == model.boundary(unit, rows, 64)
        assert x.dtype == torch.float32
    with FlopCounterMode(display=False) as counter:
        model.loss(chain(inputs), targets).backward()
    assert counter.get_total_flops() == model.training_flops(rows, 64) == model.training_flops(rows, 64, causal=False)


def test_resnets_flops_are_the_published_ones() -> None:
    # He et al., 2016, table 1: 1.8 and 3.8 billion multiply-adds for one image; with the stride at the 3x3, 4.1.
    flops = {
        name: sum(models.load(name).forward_flops(u, 1, 1, causal=True) for u in models.load(name).units) for name in SIZES
    }
    assert flops["resnet-18"] == pytest.approx(2 * 1.8e9, rel=0.02)
    assert flops["resnet-50"] == pytest.approx(2 * 4.1e9, rel=0.02)


@pytest.mark.parametrize("name", ["mlp-tiny", "resnet-tiny"])
def test_boundaries_are_fp32_where_the_model_computes_in_16_bits(name: str) -> None:
    model = models.load(name)
    chain, (x, _) = whole(model), batch(model, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for unit in model.units[:-1]:
            x = chain.get_submodule(unit)(x)
            assert x.dtype == torch.float32, unit


# ------------------------------------------------------------------------------------------------ mathematics


def test_mlp() -> None:
    """The whole model written out as products."""
    model = models.load("mlp-tiny[blocks=2]")
    chain, (images, labels) = whole(model), batch(model, 5)
    w = dict(chain.named_parameters())
    x = images @ w["input.linear.weight"].T + w["input.linear.bias"]
    for block in model.blocks:
        up = x @ w[f"{block}.pair.up.weight"].T + w[f"{block}.pair.up.bias"]
        up = 0.5 * up * (1 + torch.tanh((2 / math.pi) ** 0.5 * (up + 0.044715 * up**3)))
        x = x + up @ w[f"{block}.pair.down.weight"].T + w[f"{block}.pair.down.bias"]
    logits = x @ w["head.linear.weight"].T + w["head.linear.bias"]
    torch.testing.assert_close(chain(images), logits)
    chosen = [(logits[i].exp() / logits[i].exp().sum())[label].log() for i, label in enumerate(labels)]
    torch.testing.assert_close(model.loss(logits, labels), -torch.stack(chosen).mean())


def test_batch_norm() -> None:
    norm = BatchNorm(4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 4, 5, 6)
    columns = x.transpose(0, 1).flatten(1)
    normed = (columns - columns.mean(1, keepdim=True)) / (columns.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = normed * norm.weight[:, None] + norm.bias[:, None]
    torch.testing.assert_close(norm(x).transpose(0, 1).flatten(1), expected)
    assert torch.equal(norm(x), norm.eval()(x)), "there are no running statistics to be used instead"
    assert norm(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["resnet-tiny[stage1=2]", "resnet-tiny[bottleneck=true]", "resnet-tiny[smooth=true]"])
def test_resnet(name: str) -> None:
    """The whole model written out in torch's functions, strides and projections from the paper."""
    model = models.load(name)
    d = model.dimensions
    chain, (images, _) = whole(model), batch(model, 4)
    w = dict(chain.named_parameters())
    activation: Callable[[Tensor], Tensor] = F.gelu if d.smooth else F.relu

    def convolve(x: Tensor, prefix: str, stride: int) -> Tensor:
        kernel = w[f"{prefix}.filter.weight"]
        y = F.conv2d(x, kernel, stride=stride, padding=kernel.size(-1) // 2)
        return F.batch_norm(y, None, None, w[f"{prefix}.norm.weight"], w[f"{prefix}.norm.bias"], training=True)

    pool = F.avg_pool2d if d.smooth else F.max_pool2d
    x = pool(activation(convolve(images, "stem.convolution", 2)), 3, 2, 1)
    number = 0
    for stage, blocks in enumerate(d.stages):
        for i in range(blocks):
            stride, block = (2 if stage > 0 and i == 0 else 1), f"block{number}"
            strides = [1, stride, 1] if d.bottleneck else [stride, 1]
            y = x
            for j, each in enumerate(strides):
                y = convolve(y, f"{block}.convolutions.{j}", each)
                y = activation(y) if j < len(strides) - 1 else y
            projected = f"{block}.shortcut.filter.weight" in w
            assert projected == (y.shape != x.shape)
            x = activation(y + (convolve(x, f"{block}.shortcut", stride) if projected else x))
            number += 1
    logits = x.mean((2, 3)) @ w["head.linear.weight"].T + w["head.linear.bias"]
    torch.testing.assert_close(chain(images), logits, rtol=1e-4, atol=1e-5)


def test_initial_values_keep_the_size_of_signals() -> None:
    deviation = initialize.full(models.load("resnet-18"), "block2.convolutions.0.filter.weight", 0).std().item()
    assert deviation == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.01)  # He et al., 2015, by what a filter reaches
    last = initialize.full(models.load("resnet-50"), "block4.convolutions.2.norm.weight", 0)
    assert torch.equal(last, torch.full((512,), 0.25)), "16 blocks add up in the stream"
    stream = batch(models.load("mlp-tiny"), 64)[0]
    for unit in whole(models.load("mlp-tiny[blocks=16]")).children():
        stream = unit(stream)
    assert 0.1 < stream.std().item() < 10


@pytest.mark.parametrize("name", ["mlp-tiny", "resnet-tiny"])
def test_the_loss_falls(name: str) -> None:
    """60 steps on real images: from a guess among ten digits to telling most of them apart."""
    model = models.load(name)
    chain, samples = whole(model), model.samples(Cell(model=name))
    optimizer = torch.optim.AdamW(chain.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        inputs, targets = samples.batch(step, 32)
        loss = model.loss(chain(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(10), rel=0.4)
    assert sum(losses[-5:]) / 5 < 0.8


# ------------------------------------------------------------------------------------------------ what strategies ask


def test_the_tensor_plan_forgets_nothing_between_input_and_head() -> None:
    model = models.load("mlp-tiny")
    linears = {name for name, module in whole(model).named_modules() if isinstance(module, nn.Linear)}
    cut = {name for name in linears if any(fnmatch.fnmatchcase(name, plan.pattern) for plan in model.tensor_plan)}
    assert linears - cut == {"input.linear"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layout": "tp=2:hand", "model": "resnet-tiny"}, "made of convolutions"),
        ({"layout": "tp=2:dtensor,dp=2:ddp", "model": "resnet-50[synchronised=true]"}, "spread it along dp or pp"),
        ({"layout": "tp=3:hand", "model": "mlp-tiny"}, "mlp=128"),
        ({"layout": "pp=4:gpipe", "model": "mlp-wide"}, "at most pp=3"),
        ({"model": "mlp-tiny", "data": "some.txt"}, "leave --text out"),
    ],
)
def test_what_cannot_run_says_why(fields: dict[str, Any], said: str) -> None:
    reason = illegal(Cell.model_validate(fields), CPU)
    assert reason is not None and said in reason


def test_a_sequence_means_nothing_to_images() -> None:
    assert illegal(Cell.model_validate({"model": "mlp-tiny", "batch": {"sequence": 10**6}}), CPU) is None


@pytest.mark.parametrize(
    ("model", "layout", "microbatches", "said"),
    [
        ("resnet-tiny", "single", 1, None),
        ("resnet-tiny", "pp=2:gpipe", 1, None),
        ("resnet-tiny", "dp=2:ddp", 1, "local batch norm"),
        ("resnet-tiny", "single", 2, "one of 2 microbatches"),
        ("resnet-tiny[synchronised=true]", "dp=2:ddp", 1, None),
        ("resnet-tiny[synchronised=true]", "dp=2:ddp", 4, "one of 4 microbatches"),
        ("mlp-tiny", "pp=2:1f1b,dp=2:ddp", 4, None),
        ("llama-tiny", "dp=2:ddp", 4, None),
    ],
)
def test_when_the_whole_batchs_step_is_another(model: str, layout: str, microbatches: int, said: str | None) -> None:
    why = models.load(model).incomparable(cell(layout, model=model, batch={"global": 8, "microbatches": microbatches}))
    assert why is None if said is None else said in why


def test_only_data_ranks_make_a_norm_a_common_one() -> None:
    class Alone:
        def group(self, axis: str) -> None:
            assert axis == "dp"

    model = models.load("resnet-tiny[synchronised=true]")
    chain = whole(model)
    before = [type(module) for module in chain.modules()]
    model.share_batch(chain, Alone())
    assert [type(module) for module in chain.modules()] == before


def test_on_gpus_a_common_norm_is_torchs_own() -> None:
    model = models.load("resnet-tiny[synchronised=true]")
    chain = whole(model)
    before, group = dict(chain.named_parameters()), object()
    synchronise(chain, group, "cuda")
    norms = [module for module in chain.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 1 + 4 * 2 + 3
    assert all(type(norm) is nn.SyncBatchNorm and norm.process_group is group for norm in norms)
    after = dict(chain.named_parameters())
    assert list(after) == list(before) and all(after[name] is parameter for name, parameter in before.items())
    assert not dict(chain.named_buffers())


def test_a_jumping_gradient_is_verified_smooth() -> None:
    assert smooth("resnet-50") == "resnet-50[smooth=true]" == smooth("resnet-50[smooth=true]")
    assert smooth("mlp-tiny") == "mlp-tiny" and smooth("llama-tiny") == "llama-tiny"
    assert stand_in("resnet-50", "resnet-50[smooth=true]") == "smooth"
    assert stand_in("resnet-50[smooth=true]", "resnet-50[smooth=true]") == ""
    assert stand_in("llama-8b", "llama-8b[blocks=2]") == "shallow"


@pytest.mark.parametrize(
    ("name", "layout", "verified"),
    [
        ("resnet-50", "dp=8:ddp", "resnet-50[smooth=true,stage1=1,stage2=1,stage3=1,stage4=1]"),
        ("resnet-50", "pp=8:gpipe", "resnet-50[smooth=true,stage2=3,stage3=1,stage4=1]"),
        ("mlp-stack", "pp=4:gpipe", "mlp-stack[blocks=4]"),
    ],
)
def test_what_does_not_fit_is_verified_shallow(name: str, layout: str, verified: str) -> None:
    asked = cell(layout, model=name, batch={"global": 8}, protocol={"reference_bytes": 1})
    assert verification_model(asked, 1) == verified
    assert "shallow" in stand_in(name, verified)


@pytest.mark.parametrize(
    ("name", "precision", "verified"),
    [
        ("resnet-18", "fp32", "resnet-18[smooth=true]"),
        ("resnet-18", "bf16", "resnet-18[smooth=true,stage1=1,stage2=1,stage3=1,stage4=1]"),
        ("resnet-tiny", "fp16", "resnet-tiny[smooth=true]"),
        ("mlp-stack", "bf16", "mlp-stack"),
    ],
)
def test_batch_norm_in_16_bits_is_verified_shallow(name: str, precision: str, verified: str) -> None:
    assert verification_model(cell("dp=2:ddp", model=name, precision=precision), 0) == verified


def test_the_estimate_covers_feature_maps() -> None:
    model, kept = models.load("resnet-50"), []
    chain = whole(model)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        chain(batch(model, 1)[0])
    weights = 4 * model.parameter_count()
    assert (sum(kept) - weights) / 2 < model.activation_bytes(1, 1) < 4 * sum(kept)


def test_which_models_read_text_is_known_without_torch() -> None:
    for name in models.names():
        assert models.reads_text(name) == (models.load(name).longest_sequence is not None)


def test_every_block_has_a_shape_of_its_own_stage() -> None:
    shapes = resnet.Model("resnet-50", models.parse("resnet-50").dimensions)._shapes.values()
    assert [shape.outputs for shape in shapes] == [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3
    assert [shape.side for shape in shapes] == [56] * 3 + [28] * 4 + [14] * 6 + [7] * 3
