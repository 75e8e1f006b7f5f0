"""Checkpointing recomputes blocks and changes no value."""

import torch

from benchmarks import initialize, models
from benchmarks.contract import Part
from benchmarks.techniques.checkpointing import apply_checkpointing


def part() -> Part:
    model = models.load("llama-tiny[blocks=2]")
    chain = initialize.chain(model, model.units).to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in chain.named_parameters():
            parameter.copy_(initialize.full(model, name, 0))
    placements = initialize.placements(model, chain)
    return Part(model=model, module=chain, index=0, count=1, blocks=model.blocks, placements=placements)


def gradients(policy: str) -> tuple[dict[str, torch.Tensor], int]:
    made = part()
    forwards = []
    for name in made.blocks:
        made.module.get_submodule(name).mlp.register_forward_pre_hook(lambda *_: forwards.append(1))
    apply_checkpointing(made, policy)
    tokens = torch.arange(16).view(2, 8)
    made.model.loss(made.module(tokens), tokens).backward()
    return {name: p.grad for name, p in made.module.named_parameters()}, len(forwards)


def test_gradients_are_equal_and_every_block_runs_twice():
    plain, once = gradients("none")
    recomputed, twice = gradients("full")
    assert (once, twice) == (2, 4)
    assert plain.keys() == recomputed.keys()
    for name in plain:
        assert torch.equal(plain[name], recomputed[name])
