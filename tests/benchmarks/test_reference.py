"""The single-device run, against loops written here; and that training learns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks import initialize, models, reference
from benchmarks.cell import Batch, Cell, Protocol
from benchmarks.contract import Part
from benchmarks.data import Text
from benchmarks.layout import Layout

CPU = torch.device("cpu")


class Seat:
    """What `materialize` asks of a world that is one process."""

    degrees: dict[str, int] = {}
    device = CPU
    seed = 0


def plain(name: str) -> tuple:
    """A whole model with its seeded weights."""
    model = models.load(name)
    chain = initialize.chain(model, model.units)
    part = Part(
        model=model, module=chain, index=0, count=1, blocks=model.blocks, placements=initialize.placements(model, chain)
    )
    initialize.materialize(part, Seat())
    return model, chain


def train(cell: Cell, path: Path, steps: int = 3) -> tuple[reference.Reference, dict[str, torch.Tensor]]:
    found = reference.train(cell, CPU, steps=steps, parameters_file=path / "parameters")
    return found, torch.load(path / "parameters", weights_only=True, mmap=True)


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_it_is_plain_sgd(name: str, clip: float, tmp_path: Path) -> None:
    """Against a loop without optimizer, autocast, scaler and chunks: the weights themselves are stepped."""
    cell = Cell(model=name, clip=clip)
    found, parameters = train(cell, tmp_path)
    model, chain = plain(name)
    for step in range(3):
        inputs, targets = Text(cell.data, 0).batch(step, 8, 64, 256)
        loss = model.loss(chain(inputs), targets)
        gradients = torch.autograd.grad(loss * found.loss_factor, list(chain.parameters()))
        norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
        assert found.losses[step] == pytest.approx(loss.item(), rel=1e-6)
        assert found.gradient_norms[step] == pytest.approx(norm, rel=1e-5)
        with torch.no_grad():
            for parameter, gradient in zip(chain.parameters(), gradients, strict=True):
                parameter -= found.learning_rate * gradient * (min(1.0, clip / norm) if clip else 1.0)
    assert found.skipped == [False] * 3
    assert list(parameters) == [n for n, _ in chain.named_parameters()] == list(model.parameter_shapes)
    for key, parameter in chain.named_parameters():
        torch.testing.assert_close(parameters[key], parameter.detach(), rtol=1e-4, atol=1e-6)


def test_every_norm_is_above_four_and_the_factor_no_larger_than_that_takes(tmp_path: Path) -> None:
    model, chain = plain("gpt2-tiny")
    inputs, targets = Text("python-stdlib", 0).batch(0, 8, 64, 256)
    model.loss(chain(inputs), targets).backward()
    true_norm = torch.nn.utils.get_total_norm([p.grad for p in chain.parameters()]).item()
    found, _ = train(Cell(model="gpt2-tiny"), tmp_path)
    assert found.loss_factor == 2 ** round(math.log2(found.loss_factor)) > 1
    assert found.gradient_norms[0] == pytest.approx(true_norm * found.loss_factor, rel=1e-5)
    assert 4 <= min(found.gradient_norms) < 8


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_the_first_step_moves_the_weights_by_its_length(clip: float, tmp_path: Path) -> None:
    found, parameters = train(Cell(clip=clip), tmp_path, steps=1)
    model = models.load("llama-tiny")
    moved = sum((value - initialize.full(model, name, 0)).double().square().sum().item() for name, value in parameters.items())
    assert math.sqrt(moved) == pytest.approx(0.3, rel=1e-3)
    assert found.learning_rate == pytest.approx(0.3 / min(clip or math.inf, found.gradient_norms[0]), rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "norm_error", "update_error"), [("fp32", 1e-6, 3e-4), ("bf16", 5e-3, 2e-2), ("fp16", 2e-3, 5e-3)]
)
def test_chunks_do_not_change_the_gradient(
    precision: str, norm_error: float, update_error: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(precision=precision, clip=1.0)
    whole, parameters = train(cell, tmp_path)
    parameters = {name: value.clone() for name, value in parameters.items()}
    monkeypatch.setattr(reference, "CHUNK_TOKENS", 192)  # three rows: chunks of 3, 3 and 2
    cut, cut_parameters = train(cell, tmp_path)
    assert whole.skipped == cut.skipped == [False] * 3
    assert cut.losses == pytest.approx(whole.losses, rel=norm_error)
    assert cut.gradient_norms == pytest.approx(whole.gradient_norms, rel=norm_error)
    model = models.load(cell.model)
    for name, value in parameters.items():
        moved = (value - initialize.full(model, name, 0)).abs().max()
        assert (cut_parameters[name] - value).abs().max() <= update_error * moved, name


def test_an_overflow_skips_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "VERIFICATION_LOSS_SCALE", 2.0**40)
    found, parameters = train(Cell(precision="fp16"), tmp_path, steps=2)
    assert found.skipped == [True, True]
    assert found.gradient_norms == [None, None]
    model = models.load("llama-tiny")
    assert all(torch.equal(value, initialize.full(model, name, 0)) for name, value in parameters.items())


def test_cells_of_one_reference_have_one_reference_cell() -> None:
    cells = [
        Cell(layout="dp=2:ddp,tp=2:hand", processes=4, devices=4, checkpointing="full", batch=Batch(microbatches=2)),
        Cell(layout="pp=2:1f1b", processes=2, devices=2, protocol=Protocol(measure_steps=7)),
        Cell(),
    ]
    singles = {reference.reference_cell(cell).id for cell in cells}
    assert len(singles) == 1
    single = reference.reference_cell(cells[0])
    assert (str(single.layout), single.processes, single.devices, single.checkpointing) == ("single", 1, 1, "none")
    different = [Cell(precision="bf16"), Cell(clip=1.0), Cell(seed=1), Cell(batch=Batch(sequence=32)), Cell(model="gpt2-tiny")]
    assert len({reference.reference_cell(cell).id for cell in different} | singles) == 6


@pytest.mark.parametrize(
    ("model", "layout", "gibibytes", "expected"),
    [
        ("llama-8b", "dp=8:fsdp", 0, "llama-8b"),  # unknown: taken to be enough
        ("llama-8b", "dp=8:fsdp", 80, "llama-8b[blocks=2]"),
        ("llama-8b", "pp=4:1f1b,tp=2:hand", 80, "llama-8b[blocks=4]"),
        ("llama-8b[tied=true]", "tp=8:hand", 80, "llama-8b[blocks=2,tied=true]"),
        ("gpt2-124m", "dp=8:ddp", 80, "gpt2-124m"),
        ("llama-tiny[blocks=1]", "dp=2:ddp", 1e-6, "llama-tiny[blocks=1]"),
    ],
)
def test_what_does_not_fit_is_verified_shallow(model: str, layout: str, gibibytes: float, expected: str) -> None:
    cell = Cell(model=model, layout=Layout.parse(layout), batch=Batch(sequence=512))
    assert reference.verification_model(cell, int(gibibytes * 2**30)) == expected


def test_the_estimate_covers_weights_and_gradients() -> None:
    model = models.load("llama-1b")
    estimate = reference.reference_bytes(model, Batch(sequence=128), 8)
    assert 8 * 1_235_814_400 < estimate < 40 * 2**30


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_the_loss_falls(name: str) -> None:
    """60 steps on real text: far below the 5.5 nats of a uniform guess over 256 bytes, and below the entropy of its bytes."""
    model, chain = plain(name)
    text = Text("python-stdlib", 0)
    optimizer = torch.optim.AdamW(chain.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(60):
        inputs, targets = text.batch(step, 8, 64, 256)
        loss = model.loss(chain(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(256), rel=0.1)
    assert sum(losses[-5:]) / 5 < 3.0
