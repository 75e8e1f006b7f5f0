"""Gates of made-up runs, whose truth is known: how often a gate raises a false alarm, and how often it sees a slowdown.

Run-to-run spreads of 0.3, 1 and 2 %; the machine may slow down by 2 % while the gate goes on; one run in 20 may be slowed by
3 to 10 % by something else. Spreads come from ten A/A runs, or are not known. The decision is the gate's own, look after
look.
"""

import itertools

import numpy as np
import pytest

from harness.compare.shift import judge, spread
from harness.compare.verdicts import Terms
from harness.gate.rounds import NAMES, settle
from tests.harness.runs import made

PAIRS, MOST = 5, 10
CASES = list(itertools.product((0.003, 0.01, 0.02), (0.0, 0.02), (False, True)))
FALSE_ALARMS, CAUGHT = 0.005, 0.95


def times(draw: np.random.Generator, count: int, noise: float, drift: float, slow: bool) -> np.ndarray:
    """Runs in the order in which they are made, seconds."""
    runs = np.exp(draw.normal(0, noise, count)) * (1 + drift * np.arange(count) / count)
    return np.where(draw.random(count) < 0.05, runs * (1 + draw.uniform(0.03, 0.10, count)), runs) if slow else runs


def in_turn(runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A B B A A B B A ...: the runs of base and of head."""
    base = np.arange(len(runs)) % 4 % 3 == 0
    return runs[base], runs[~base]


def gate(draw: np.random.Generator, factor: float, noise: float, drift: float, slow: bool, calibrated: bool) -> str:
    """The word of one gate of one cell, whose head is `factor` times as slow."""
    base, head = in_turn(times(draw, 2 * MOST, noise, drift, slow))
    known = spread(times(draw, 10, noise, 0.0, slow).tolist()) if calibrated else None
    for runs in range(PAIRS, MOST + 1):
        word = judge(base[:runs].tolist(), (head[:runs] * factor).tolist(), known=known, again=not calibrated).word
        if word != "inconclusive":
            break
    return word


def words(count: int, seed: int, factor: float, *case) -> list[str]:
    draw = np.random.default_rng(seed)
    return [gate(draw, factor, *case) for _ in range(count)]


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_false_alarms_are_rare_and_slowdowns_are_caught(count, calibrated):
    """`count` gates of each case without a change, and as many whose head is 5 % slower. Where one alarm more or less would
    decide, over few, all cases count together."""
    alarms, caught = [], []
    for number, case in enumerate(CASES):
        same, slower = (words(count, number, factor, *case, calibrated) for factor in (1.0, 1.05))
        alarms.append((same.count("regressed") + same.count("improved")) / count)
        power = slower.count("regressed") / count
        caught += [power] if case[0] == 0.01 else []
        print("spread {:.1%}, drift {:.0%}, slow runs {}:".format(*case), f"false {alarms[-1]:.2%}, caught {power:.1%}")
    assert (max(alarms) if count >= 2000 else np.mean(alarms)) <= FALSE_ALARMS
    assert (min(caught) if count >= 2000 else np.mean(caught)) >= CAUGHT


def test_the_order_of_runs():
    base, head = in_turn(np.arange(8))
    assert base.tolist() == [0, 3, 4, 7] and head.tolist() == [1, 2, 5, 6]


def test_a_test_of_steps_would_raise_false_alarms():
    """What the gate does not do: steps of one run taken for samples. The simulation can fail."""
    draw, alarms = np.random.default_rng(0), 0
    for _ in range(200):
        base, head = ((1 + draw.normal(0, 0.02)) * (1 + draw.normal(0, 0.005, 10)) for _ in NAMES)
        alarms += judge(base.tolist(), head.tolist()).word in ("regressed", "improved")
    assert alarms > 0.05 * 200


def whole_gate(draw: np.random.Generator, layouts: tuple[str, ...], factor: float) -> dict[str, str]:
    """A gate of several cells by the gate's own loop, with one of them slowed: layout -> word."""
    made_up = {layout: in_turn(times(draw, 2 * MOST, 0.01, 0.02, True)) for layout in layouts}
    ids = {layout: made(layout).cell_id for layout in layouts}
    asked = []

    def measure(name: str, number: int, cells) -> list:
        asked.append(name)
        wanted = layouts if cells is None else [layout for layout in layouts if ids[layout] in {cell.id for cell in cells}]
        slower = {layouts[0]: factor} if name == "head" else {}
        runs = {layout: made_up[layout][NAMES.index(name)][number - 1] * slower.get(layout, 1.0) for layout in wanted}
        return [made(layout, seconds=float(seconds)) for layout, seconds in runs.items()]

    terms = Terms(spreads=dict.fromkeys(ids.values(), 0.01), environments_may_differ=True, looking=True)
    comparison = settle(measure, lambda: terms, pairs=PAIRS, most=MOST)
    assert asked[:8] == ["base", "head", "head", "base", "base", "head", "head", "base"]
    found = {v.cell_id: v.word for v in comparison.verdicts if v.metric == "step_seconds"}
    return {layout: found[cell_id] for layout, cell_id in ids.items()}


def test_whole_gates():
    draw, layouts = np.random.default_rng(7), ("dp=2:ddp", "single", "tp=2:hand")
    found = [whole_gate(draw, layouts, 1.06) for _ in range(20)]
    assert sum(words["dp=2:ddp"] == "regressed" for words in found) >= 19
    assert all(words[layout] not in ("regressed", "improved") for words in found for layout in layouts[1:])
