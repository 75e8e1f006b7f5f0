"""Weights with two names."""

import torch
from torch import nn

from benchmarks.tied import read_through, shared_names, tie_again


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def test_names_of_one_weight():
    assert shared_names(Pair()) == {"head.weight": "embedding.weight"}


def test_a_replaced_weight_is_tied_again():
    pair = Pair()
    shared = shared_names(pair)
    pair.embedding.weight = nn.Parameter(torch.ones(5, 3))
    pair.head.weight = nn.Parameter(torch.zeros(5, 3))
    tie_again(pair, shared)
    assert pair.head.weight is pair.embedding.weight


def test_reading_through_sees_what_takes_the_first_names_place():
    pair = Pair()
    read_through(pair)
    assert [name for name, _ in pair.named_parameters(remove_duplicate=False)] == ["embedding.weight"]
    tokens = torch.tensor([1, 4])
    pair(tokens).sum().backward()
    whole = Pair()
    whole.load_state_dict({"embedding.weight": pair.embedding.weight, "head.weight": pair.embedding.weight})
    whole(tokens).sum().backward()
    torch.testing.assert_close(pair.embedding.weight.grad, whole.embedding.weight.grad)
    pair.embedding.weight = nn.Parameter(torch.zeros(5, 3))
    assert pair(tokens).abs().sum() == 0
