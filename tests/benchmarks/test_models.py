"""Names, sizes, FLOPs and mathematics of the reference models, each against something worked out apart from them."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import models
from benchmarks.contract import Chain, Model
from benchmarks.errors import UsageError
from benchmarks.models import gpt2, llama


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# ------------------------------------------------------------------------------------------------ names


def test_options_replace_dimensions() -> None:
    model = models.load("llama-tiny[blocks=2,tied=true]")
    assert model.name == "llama-tiny[blocks=2,tied=true]"
    assert model.units == ("embedding", "block0", "block1", "head")
    assert model.tied == {"head.linear.weight": "embedding.token.weight"}


def test_with_options_keeps_those_that_are_there() -> None:
    assert models.with_options("gpt2-1.5b", blocks=3) == "gpt2-1.5b[blocks=3]"
    assert models.with_options("llama-8b[tied=true,blocks=9]", blocks=4) == "llama-8b[blocks=4,tied=true]"
    assert models.parse("llama-8b[blocks=4,tied=true]").dimensions["hidden"] == 4096


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-tny", ["unknown model 'llama-tny'", "did you mean 'llama-tiny'?", "gpt2-124m"]),
        ("lama-8b", ["did you mean 'llama-8b'?"]),
        ("llama", ["unknown model 'llama'", "llama-tiny"]),
        ("llama-tiny[block=2]", ["unknown option 'block'", "'llama-tiny[block=2]'", "did you mean 'blocks'?"]),
        ("llama-tiny[blocks=two]", ["'blocks'", "'two'", "whole number"]),
        ("llama-tiny[blocks=0]", ["'0'", "at least 1"]),
        ("llama-tiny[theta=nan]", ["'nan'", "positive number"]),
        ("llama-tiny[tied=1]", ["'1'", "true or false"]),
        ("llama-tiny[blocks]", ["cannot read option 'blocks'", "option=value"]),
        ("llama-tiny[blocks=1,blocks=2]", ["'blocks' stands twice"]),
        ("llama-tiny[blocks=1", ["cannot read model", "llama-8b[blocks=4]"]),
        ("", ["cannot read model ''"]),
    ],
)
def test_a_bad_name_says_what_is_possible(name: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        models.check_name(name)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("name", ["llama-tiny[heads=3]", "llama-tiny[kv_heads=3]", "gpt2-tiny[heads=5]"])
def test_dimensions_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="heads"):
        models.load(name)


def test_names_are_checked_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from benchmarks import models\nmodels.check_name('llama-8b[blocks=4]')\nassert 'gpt2-1.5b' in models.names()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# ------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2-124m", 124_439_808),  # GPT-2, Hugging Face gpt2
        ("gpt2-1.5b", 1_557_611_200),  # GPT-2 XL
        ("llama-1b", 1_235_814_400),  # Llama 3.2 1B
        ("llama-8b", 8_030_261_248),  # Llama 3.1 8B
    ],
)
def test_parameter_count_is_the_published_one(name: str, count: int) -> None:
    assert models.load(name).parameter_count() == count


@pytest.mark.parametrize(
    ("name", "low", "high"), [("llama-15m", 14e6, 16e6), ("llama-125m", 120e6, 130e6), ("llama-350m", 340e6, 360e6)]
)
def test_the_other_sizes_are_what_they_are_called(name: str, low: float, high: float) -> None:
    assert low < models.load(name).parameter_count() < high


@pytest.mark.parametrize("name", [name for name in models.names() if models.reads_text(name)])
def test_every_size_is_consistent(name: str) -> None:
    model = models.load(name)
    assert model.boundary("embedding", 2, 8) == model.boundary(model.blocks[-1], 2, 8)
    assert model.longest_sequence >= 512
    assert set(model.tied) & set(model.parameter_shapes) == set()
    assert set(model.tied.values()) <= set(model.parameter_shapes)


@pytest.mark.parametrize(
    ("name", "degree", "problem"),
    [
        ("llama-tiny", 2, None),
        ("llama-tiny", 4, "kv_heads=2"),
        ("llama-15m", 4, None),
        ("llama-8b", 8, None),
        ("llama-8b", 3, "heads=32"),
        ("gpt2-tiny", 4, None),
        ("gpt2-1.5b", 2, "heads=25"),
        ("gpt2-tiny[mlp=250]", 4, "mlp=250"),
    ],
)
def test_tensor_problem(name: str, degree: int, problem: str | None) -> None:
    found = models.load(name).tensor_problem(degree)
    assert found is None if problem is None else problem in found and str(degree) in found


# ------------------------------------------------------------------------------------------------ FLOPs


def whole(model: Model) -> Chain:
    """The model with torch's own initial values, tied where it is."""
    chain = Chain({unit: model.build(unit) for unit in model.units})
    for name, first in model.tied.items():
        chain.get_submodule(name.rpartition(".")[0]).weight = chain.get_parameter(first)
    return chain


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny", "llama-tiny[kv_heads=1,blocks=1]", "gpt2-tiny[blocks=3,mlp=96]"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    model, rows, sequence = models.load(name), 3, 24
    chain = whole(model)
    x = torch.randint(0, 256, (rows, sequence))
    # The mathematical kernel is made of counted matrix products; the fused one on the CPU is not counted.
    with sdpa_kernel(SDPBackend.MATH):
        for unit in model.units:
            with FlopCounterMode(display=False) as counter:
                x = chain.get_submodule(unit)(x)
            assert counter.get_total_flops() == model.forward_flops(unit, rows, sequence, causal=False)
            assert tuple(x.shape) == model.boundary(unit, rows, sequence)
        with FlopCounterMode(display=False) as counter:
            model.loss(chain(torch.randint(0, 256, (rows, sequence))), torch.randint(0, 256, (rows, sequence))).backward()
    assert counter.get_total_flops() == model.training_flops(rows, sequence, causal=False)


def test_causal_flops_leave_out_what_the_mask_hides() -> None:
    model = models.load("llama-tiny")  # 4 heads of 16
    full = model.forward_flops("block0", 2, 5, causal=False)
    causal = model.forward_flops("block0", 2, 5, causal=True)
    # 25 pairs become 15, each costs two products of 16 multiply-adds in 4 heads of 2 rows.
    assert full - causal == 10 * 2 * 16 * 2 * 4 * 2


# ------------------------------------------------------------------------------------------------ llama's mathematics


def complex_rotation(x: Tensor, theta: float) -> Tensor:
    """Rotary positions as the product with e^(i m f), in double precision. x: (rows, heads, sequence, head_dim)."""
    half = x.size(-1) // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    frequencies = torch.tensor([theta ** (-2 * i / x.size(-1)) for i in range(half)], dtype=torch.float64)
    angles = torch.outer(torch.arange(x.size(-2), dtype=torch.float64), frequencies)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def test_rotary_positions_are_a_complex_product() -> None:
    x = torch.randn(2, 3, 17, 8)
    torch.testing.assert_close(llama.rotate(x, 10000.0).double(), complex_rotation(x, 10000.0), rtol=1e-5, atol=1e-6)


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    query, key = torch.randn(8), torch.randn(8)
    queries, keys = (llama.rotate(v.expand(1, 1, 12, 8), 100.0)[0, 0] for v in (query, key))
    scores = queries @ keys.T
    for distance in range(-6, 7):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)


def test_rotary_keeps_the_dtype_and_computes_in_fp32() -> None:
    x = torch.randn(1, 2, 9, 4).bfloat16()
    turned = llama.rotate(x, 10000.0)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, llama.rotate(x.float(), 10000.0).bfloat16())


def test_rms_norm() -> None:
    norm = llama.RMSNorm(6, 1e-5)
    nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 6)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected)


def test_llama_block() -> None:
    """One block written out head by head and position by position, in double precision."""
    model = models.load("llama-tiny[hidden=16,heads=4,kv_heads=2,mlp=24]")
    block = model.build("block0")
    nn.init.normal_(block.attention_norm.weight)
    nn.init.normal_(block.mlp_norm.weight)
    w = {name: p.detach().double() for name, p in block.named_parameters()}
    x32 = torch.randn(1, 5, 16)
    x = x32[0].double()

    def norm(v: Tensor, weight: Tensor) -> Tensor:
        return torch.stack([row / (sum(e * e for e in row) / 16 + 1e-5) ** 0.5 for row in v]) * weight

    y = norm(x, w["attention_norm.weight"])
    heads = []
    for head in range(4):
        group = head // 2  # two query heads share one key and value head
        query = y @ w["attention.query.weight"][4 * head : 4 * head + 4].T
        key = y @ w["attention.key.weight"][4 * group : 4 * group + 4].T
        value = y @ w["attention.value.weight"][4 * group : 4 * group + 4].T
        query, key = (complex_rotation(v[None, None], 10000.0)[0, 0] for v in (query, key))
        rows = []
        for position in range(5):
            scores = torch.stack([query[position] @ key[earlier] / 4**0.5 for earlier in range(position + 1)])
            weights = scores.exp() / scores.exp().sum()
            rows.append(sum(weights[earlier] * value[earlier] for earlier in range(position + 1)))
        heads.append(torch.stack(rows))
    x = x + torch.cat(heads, dim=-1) @ w["attention.output.weight"].T
    y = norm(x, w["mlp_norm.weight"])
    gate = y @ w["mlp.gate.weight"].T
    x = x + (gate / (1 + (-gate).exp()) * (y @ w["mlp.up.weight"].T)) @ w["mlp.down.weight"].T
    torch.testing.assert_close(block(x32)[0].double(), x, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------ gpt2's mathematics


def test_gpt2_is_torchs_own_transformer() -> None:
    """The whole model against nn.TransformerEncoderLayer with the same weights, and the tied output against a product."""
    model = models.load("gpt2-tiny[blocks=2]")
    chain = whole(model)
    tokens = torch.randint(0, 256, (2, 20))
    x = chain.embedding.token.weight[tokens] + chain.embedding.position.weight[:20]
    mask = nn.Transformer.generate_square_subsequent_mask(20)
    for name in model.blocks:
        block = chain.get_submodule(name)
        layer = nn.TransformerEncoderLayer(
            64, 4, 256, dropout=0.0, activation=lambda v: F.gelu(v, approximate="tanh"), norm_first=True, batch_first=True
        )
        a, m = block.attention, block.mlp
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat((a.query.weight, a.key.weight, a.value.weight)),
                "self_attn.in_proj_bias": torch.cat((a.query.bias, a.key.bias, a.value.bias)),
                "self_attn.out_proj.weight": a.output.weight,
                "self_attn.out_proj.bias": a.output.bias,
                "linear1.weight": m.up.weight,
                "linear1.bias": m.up.bias,
                "linear2.weight": m.down.weight,
                "linear2.bias": m.down.bias,
                "norm1.weight": block.attention_norm.weight,
                "norm1.bias": block.attention_norm.bias,
                "norm2.weight": block.mlp_norm.weight,
                "norm2.bias": block.mlp_norm.bias,
            }
        )
        x = layer(x, src_mask=mask, is_causal=True)
    logits = F.layer_norm(x, (64,)) @ chain.embedding.token.weight.T
    torch.testing.assert_close(chain(tokens), logits, rtol=1e-4, atol=1e-4)


def test_gpt2_layer_norm() -> None:
    norm = gpt2.LayerNorm(6, 1e-5)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 6)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected)


# ------------------------------------------------------------------------------------------------ both families


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_the_residual_stream_stays_fp32(name: str) -> None:
    """Under autocast, and where fully sharded mixed precision has gathered a block's parameters in 16 bit."""
    model = models.load(name)
    chain = whole(model)
    tokens = torch.randint(0, 256, (2, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = chain.embedding(tokens)
        assert x.dtype == torch.float32
        mixed = chain.block0(x)
        gathered = chain.block0.to(torch.bfloat16)(x)
        head = chain.head(mixed)
    assert mixed.dtype == gathered.dtype == torch.float32
    assert chain.embedding.to(torch.bfloat16)(tokens).dtype == torch.float32
    torch.testing.assert_close(mixed, gathered, rtol=2e-2, atol=2e-2)
    assert model.loss(head, tokens).dtype == torch.float32


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_no_token_sees_a_later_one(name: str) -> None:
    chain = whole(models.load(name))
    tokens = torch.randint(0, 256, (1, 12))
    changed = tokens.clone()
    changed[0, 7:] = (changed[0, 7:] + 1) % 256
    before, after = chain(tokens), chain(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_the_loss_is_the_mean_over_tokens(name: str) -> None:
    model = models.load(name)
    logits, target = torch.randn(2, 3, 256), torch.randint(0, 256, (2, 3))
    expected = [-(logits[r, t].exp() / logits[r, t].exp().sum())[target[r, t]].log() for r in range(2) for t in range(3)]
    torch.testing.assert_close(model.loss(logits, target), torch.stack(expected).mean())


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_the_tensor_plan_forgets_no_parameter(name: str) -> None:
    """Everything is cut but norms and learned positions, and of these the plan says what a share of the tokens means."""
    model = models.load(name)
    chain = whole(model)
    styles = {
        module: plan.style
        for module, _ in chain.named_modules()
        for plan in model.tensor_plan
        if fnmatch.fnmatchcase(module, plan.pattern)
    }
    owners = {parameter.rpartition(".")[0] for parameter, _ in chain.named_parameters(remove_duplicate=False)}
    assert owners <= styles.keys()
    whole_ones = {module for module in owners if styles[module] in ("sequence", "lookup", "whole")}
    assert all(module.endswith("norm") or module == "embedding.position" for module in whole_ones)
