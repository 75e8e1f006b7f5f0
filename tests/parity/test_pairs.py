"""Every pair of implementations, techniques and microbatch counts meets once, in real processes, verified and observed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from benchmarks.cell import Cell
from benchmarks.compose import illegal
from benchmarks.registry import AXES
from harness.record import Record
from tests.parity.conftest import SITE, SLOW, cell, part_of_layout, quick

WITH_KNOBS = {"tp": ("hand[loss=true,sequence=true]", "dtensor[loss=true,sequence=true]")}
FACTORS = {
    **{axis: (None, *quick(axis), *WITH_KNOBS.get(axis, ())) for axis in AXES},
    "model": ("llama-tiny", "gpt2-tiny"),
    "precision": ("fp32", "bf16", "fp16"),
    "checkpointing": ("none", "selective", "every-2", "full"),
    "offload": ("none", "activations"),
    "microbatches": (1, 2, 4),
    "clip": (0.0, 1.0, 1.0e4),
}
TOLERANCE = {"fp32": (1e-6, 1e-5, 1e-3), "bf16": (5e-3, 2e-2, 4e-2), "fp16": (5e-3, 2e-2, 4e-2)}
"""Loss, gradient norm, update: written again here, so that no change of the policy goes unseen."""


def made(values: dict[str, object]) -> Cell:
    """The cell of one choice for each factor; every axis that is there has two parts."""
    layout = ",".join(part_of_layout(axis, values[axis]) for axis in AXES if values[axis]) or "single"
    return cell(
        layout,
        model=values["model"],
        precision=values["precision"],
        checkpointing=values["checkpointing"],
        offload=values["offload"],
        clip=values["clip"],
        batch={"global": 16, "microbatches": values["microbatches"], "sequence": 32},
        protocol={"warmup_steps": 1, "measure_steps": 1, "measure_seconds": 0, "probe": False},
    )


def legal() -> Iterator[dict[str, object]]:
    """Every choice of values that makes a legal cell. Precision and clip are no strategy's concern here, so that one cell
    speaks for all of them; the chosen ones are asked again when they run."""
    free = {name: FACTORS[name] for name in ("precision", "clip")}
    asked = {name: values for name, values in FACTORS.items() if name not in free}
    refused: dict[object, bool] = {}  # layouts by themselves, so that most techniques need not be asked for
    for one in itertools.product(*asked.values()):
        found = dict(zip(asked, one, strict=True))
        plain = {"model": "llama-tiny", "checkpointing": "none", "offload": "none"} | {name: v[0] for name, v in free.items()}
        key = tuple(found[name] for name in (*AXES, "microbatches"))
        if key not in refused:
            refused[key] = illegal(made(found | plain), SITE) is not None
        if not refused[key] and illegal(made(found | {name: v[0] for name, v in free.items()}), SITE) is None:
            for others in itertools.product(*free.values()):
                yield found | dict(zip(free, others, strict=True))


def chosen() -> list[Cell]:
    """A small set of legal cells in which every pair of values that any legal cell holds stands: a greedy cover, what meets
    most pairs first."""
    numbers: dict[object, int] = {}  # a pair's bit: sets of them would take minutes
    candidates = [(choice, sum(1 << numbers.setdefault(p, len(numbers)) for p in pairs(choice))) for choice in legal()]
    missing = (1 << len(numbers)) - 1
    cells = []
    while missing:
        choice, met = max(candidates, key=lambda candidate: (candidate[1] & missing).bit_count())
        missing &= ~met
        cells.append(made(choice))
    return cells


def pairs(choice: dict[str, object]) -> set[object]:
    """All pairs of (factor, value) of one choice."""
    return set(itertools.combinations(((name, choice[name]) for name in FACTORS), 2))


def values_of(c: Cell) -> dict[str, object]:
    """The factors of a cell."""
    axes = {axis: (str(found).partition(":")[2] if (found := c.layout.get(axis)) else None) for axis in AXES}
    techniques = {"precision": c.precision, "checkpointing": c.checkpointing, "offload": c.offload}
    return {**axes, "model": c.model, **techniques} | {
        "microbatches": c.batch.microbatches,
        "clip": c.clip,
    }


CELLS = chosen()
BY_DEFAULT = 20
"""So many cells meet most pairs; each of the others adds one or two, mostly of a pipeline and a data implementation."""


def test_every_pair_is_among_them():
    met = set().union(*(pairs(values_of(c)) for c in CELLS))
    absent = set()
    for (one, ones), (other, others) in itertools.combinations(FACTORS.items(), 2):
        absent |= {((one, a), (other, b)) for a, b in itertools.product(ones, others)} - met
    # Worked out by hand. One process cannot drive all stages and be one of a tensor group; 1F1B on two stages takes two
    # microbatches or more, and DualPipeV on its four at least four; FSDP1 takes no DTensors, no backward in parts, and one
    # microbatch where several would be in flight. Selective checkpointing hands out what it kept once, and a backward in parts
    # asks twice; FairScale's and DeepSpeed's tensor layers overwrite what it kept.
    devices = {(("pp", pp), ("tp", name)) for name in FACTORS["tp"] if name for pp in ("devices", "fairscale")}
    few = {(("pp", "1f1b"), ("microbatches", 1)), *((("pp", "dualpipev"), ("microbatches", n)) for n in (1, 2))}
    older = {(("pp", name), ("dp", "fsdp1")) for name in ("1f1b", "csv", "dualpipev", "interleaved-zero-bubble", "zbv")}
    older |= {(("tp", name), ("dp", "fsdp1")) for name in FACTORS["tp"] if name and name.startswith("dtensor")}
    in_parts = ("csv", "dualpipev", "interleaved-zero-bubble", "zbv")
    twice = {(("pp", name), ("checkpointing", "selective")) for name in in_parts}
    twice |= {(("tp", name), ("checkpointing", "selective")) for name in FACTORS["tp"] if name and name.startswith("fairscale")}
    twice |= {(("tp", "autotp"), ("checkpointing", "selective"))}
    # ZeRO 2 and 3 of DeepSpeed take no pipeline between processes; what reduces by hooks takes no backward in parts; and what
    # flattens parameters, or frees them, takes none of another kind.
    spread = [name for name in FACTORS["pp"] if name not in (None, "devices", "fairscale")]
    frameworks = {(("pp", name), ("dp", stage)) for name in spread for stage in ("zero2", "zero3")}
    frameworks |= {(("pp", name), ("dp", "fairscale-sdp")) for name in in_parts}
    frameworks |= {(("pp", name), ("dp", "fairscale-fsdp")) for name in (*in_parts, "1f1b")}
    tensors = {name: [tp for tp in FACTORS["tp"] if tp and tp.startswith(name)] for name in ("hand", "dtensor", "fairscale")}
    plain = ("zero3", "fairscale-sdp", "fairscale-fsdp")
    frameworks |= {(("tp", tp), ("dp", name)) for tp in tensors["dtensor"] for name in plain}
    cut = (*tensors["hand"], *tensors["fairscale"], "autotp")
    frameworks |= {(("tp", tp), ("dp", "fairscale-fsdp")) for tp in cut}  # as long as it flattens
    assert absent == devices | few | older | twice | frameworks


@pytest.mark.parametrize(
    "c",
    [*CELLS[:BY_DEFAULT], *(pytest.param(c, marks=pytest.mark.slow) for c in CELLS[BY_DEFAULT:])],
    ids=lambda c: "-".join(str(v) for v in values_of(c).values()),
)
def test_pair(run: Callable[..., Record], c: Cell):
    _passes(run(c), c)


@pytest.mark.slow
@pytest.mark.parametrize("data", quick("dp"))
@pytest.mark.parametrize("precision, checkpointing, model", [("fp32", "none", "llama-tiny"), ("bf16", "full", "gpt2-tiny")])
@pytest.mark.parametrize("name", SLOW)
def test_what_is_slow(run: Callable[..., Record], name: str, precision: str, checkpointing: str, model: str, data: str):
    choice = {"pp": name, "tp": None, "dp": data, "model": model, "precision": precision, "checkpointing": checkpointing}
    c = made({**choice, "microbatches": 4, "clip": 1.0})
    _passes(run(c), c)


def _passes(record: Record, c: Cell) -> None:
    assert record.status == "ok", record.reason
    v = record.verification
    assert v.verdict == "passed" and v.model == c.model
    loss, norm, update = TOLERANCE[c.precision]
    assert v.max_relative_loss_error <= loss
    assert v.max_relative_gradient_norm_error <= norm
    assert v.max_update_error <= update
    assert min(v.reference_gradient_norms) > 3, "an unasked clip at 1.0 would not be seen"
    assert record.observed.microbatches == c.batch.microbatches
