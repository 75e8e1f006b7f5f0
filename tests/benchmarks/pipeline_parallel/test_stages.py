"""Where pipelines cut a model."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import models
from benchmarks.pipeline_parallel._stages import tied_stages
from benchmarks.stages import cut, stages


def heaviest(costs: list[int], sizes: list[int]) -> int:
    ends = list(itertools.accumulate(sizes))
    return max(sum(costs[end - size : end]) for end, size in zip(ends, sizes, strict=True))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
def test_no_other_cut_has_a_lighter_heaviest_stage(costs: list[int], data: st.DataObject):
    count = data.draw(st.integers(1, len(costs)))
    sizes = cut(costs, count)
    assert len(sizes) == count and sum(sizes) == len(costs) and min(sizes) >= 1
    inner = itertools.combinations(range(1, len(costs)), count - 1)
    every = ([b - a for a, b in itertools.pairwise((0, *points, len(costs)))] for points in inner)
    assert heaviest(costs, sizes) == min(heaviest(costs, other) for other in every)


def test_by_hand():
    # 0 | 5 5 5 5 | 9: embedding, four blocks and a head in three stages; 10 + 10 + 9 beats every other cut.
    assert cut([0, 5, 5, 5, 5, 9], 3) == [3, 2, 1]


def test_more_stages_than_units():
    with pytest.raises(ValueError, match="at most 3 stages"):
        cut([1, 2, 3], 4)


def test_a_heavy_head_gets_fewer_blocks():
    # One block of llama-1b costs about a fifth of its head of 128256 outputs.
    first, second = stages(models.load("llama-1b"), 2, 1024)
    assert first[0] == "embedding" and second[-1] == "head"
    assert len(second) < len(first)


def test_ties_across_stages():
    gpt2 = models.load("gpt2-tiny")
    assert tied_stages(gpt2, stages(gpt2, 2, 32)) == {"head.linear.weight": (0, 1)}
    assert tied_stages(gpt2, stages(gpt2, 1, 32)) == {}
    llama = models.load("llama-tiny")
    assert tied_stages(llama, stages(llama, 2, 32)) == {}
