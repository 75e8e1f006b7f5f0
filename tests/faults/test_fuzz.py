"""Whatever stands in a suite or a layout: it runs, or it is refused in one sentence, and no cell that is illegal is started.

A few hundred examples by default; 10,000 of each with `./run_all.sh test -m slow tests/faults/test_fuzz.py`.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks.cell import Cell
from benchmarks.compose import illegal
from benchmarks.errors import UsageError
from benchmarks.layout import Layout
from benchmarks.registry import AXES, names
from benchmarks.site import Site
from harness import commands, execute, store
from harness.cli import main
from harness.launch.entry import resolve
from harness.record import Record
from tests.harness.test_run import record

SITE = Site(kind="cpu", count=4, memory_bytes=2**34, frameworks={"torch": "2", "deepspeed": "0"})

PHASES = (Phase.explicit, Phase.generate)
"""An example is shown as it was found; making it smaller takes minutes."""

numbers = st.one_of(st.integers(-2, 9), st.integers(), st.floats(), st.sampled_from([10**30, "8", "0x8", "1e3", "9" * 5000]))
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=12), st.dates(), st.binary(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
degrees = st.one_of(
    st.sampled_from(["1", "2", "4", "*", "2x2", "0", "-1", "x2", "", "99999999999999999999"]), st.text(max_size=3)
)
knobs = st.sampled_from(["", "", "", "[]", "[reshard=false]", "[reshard=7]", "[reshard]", "[a=b,a=b]", "[[x=1]]", "[=]"])


@st.composite
def axes(draw: st.DrawFn) -> str:
    axis = draw(st.sampled_from([*AXES, "cp", ""]))
    name = draw(st.sampled_from(["", *(f":{n}" for n in names(AXES.get(axis, AXES["dp"]))), ":", ":../ddp", ":_stages", ":dp"]))
    return f"{axis}={draw(degrees)}{name}{draw(knobs)}"


layouts = st.one_of(
    st.just("single"),
    st.lists(axes(), min_size=1, max_size=4).map(",".join),
    st.lists(axes(), min_size=1, max_size=3).map(",".join),
    st.text(alphabet=string.printable, max_size=30),
    st.text(alphabet="dtp=:,x*[]1248abc-_ ", max_size=30),
)


def several(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(values, st.lists(values, max_size=3), junk)


protocols = st.dictionaries(st.sampled_from([*Cell().protocol.model_dump(), "x"]), st.one_of(numbers, junk), max_size=2)
groups = st.fixed_dictionaries(
    {},
    optional={
        "model": several(
            st.sampled_from(["llama-tiny", "mlp-tiny", "gpt2-tiny[blocks=2]", "llama-tiny[blocks=0]", "llama-", "../x"])
        ),
        "layout": several(layouts),
        "world": several(st.sampled_from([1, 2, "devices", "largest", 0, 10**18])),
        "precision": several(st.sampled_from(["fp32", "bf16", "fp16", "fp8"])),
        "checkpointing": several(st.sampled_from(["none", "full", "some"])),
        "clip": several(numbers),
        "seed": several(numbers),
        "batch": st.one_of(
            st.just("max"),
            st.dictionaries(st.sampled_from(["global", "microbatches", "sequence", "glob"]), several(numbers), max_size=3),
            junk,
        ),
        "scaling": st.sampled_from(["weak", "strong", "odd"]),
        "optimizer": st.one_of(st.dictionaries(st.sampled_from(["name", "betas", "learning_rate"]), junk, max_size=2), junk),
        "protocol": st.one_of(protocols, junk),
        "data": st.one_of(st.just("/etc/hostname"), junk),
        "device": st.sampled_from(["cpu", "cuda", "tpu"]),
        "exclude": st.one_of(
            st.lists(st.dictionaries(st.sampled_from(["layout", "model", "x"]), junk, max_size=2), max_size=2), junk
        ),
        "model ": junk,
    },
)
suites = st.one_of(
    st.fixed_dictionaries(
        {"description": st.text(max_size=5), "cells": st.lists(groups, min_size=1, max_size=2)},
        optional={"defaults": st.one_of(groups, junk), "device": st.sampled_from(["cpu", "cuda"])},
    ),
    junk,
).map(lambda value: yaml.safe_dump(value, allow_unicode=True))
texts = st.one_of(
    suites,
    suites,
    st.tuples(suites, st.integers(0, 400), st.text(alphabet="[]{}:,&*!|>-\"' \t\n\0%@", max_size=4)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
    ),
    st.text(max_size=60),
    st.sampled_from(
        [
            "[" * 3000,
            "{a: " * 3000,
            "!!python/object/apply:os.system ['touch /tmp/hpbench-was-here']",
            "description: x\ncells: &c [{model: *c}]",
            "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\ndescription: x\ncells: [{model: *c}]",
            "description: x\ncells: [{<<: {model: llama-tiny}, batch: max}]",
            "? [1, 2]\n: 3",
            "description: 1999-99-99\ncells: [{}]",
        ]
    ),
)


class InThisProcess:
    """Stands for a launcher: what would be asked of a child is asked here."""

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def call(self, function: str, payload: dict[str, Any], *, limit: float) -> Any:
        return json.loads(json.dumps(resolve(function)(json.loads(json.dumps(payload)))))

    def folder(self, name: str) -> Path:
        return Path(name)

    def stop(self) -> None: ...


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Commands start no process; the cells that would have been started."""
    cells: list[Cell] = []

    def run_cell(cell: Cell, **context: Any) -> Record:
        cells.append(cell)
        return record(cell)

    monkeypatch.setattr(commands, "_launcher", lambda layouts: [*layouts] and InThisProcess())
    environment = {"id": "e", "site": SITE.model_dump(mode="json")}
    monkeypatch.setattr(commands, "_detect", lambda launcher: (SITE, environment))
    monkeypatch.setattr(execute, "run_cell", run_cell)
    return cells


def check_suites(started: list[Cell], tmp_path: Path, examples: int) -> None:
    path, folder = tmp_path / "suite.yaml", tmp_path / "run"
    outcomes: set[int] = set()

    @settings(max_examples=examples, phases=PHASES)
    @given(text=texts, options=st.sampled_from([[], ["--device-memory", "1GiB"], ["--filter", "precision=fp32"]]))
    def check(text: str, options: list[str]) -> None:
        started.clear()
        shutil.rmtree(folder, ignore_errors=True)
        path.write_bytes(text.encode(errors="replace"))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            status = main(["run", str(path), "--out", str(folder), *options])
        outcomes.add(status)
        if status == 2:
            assert said.getvalue().startswith("hpbench: ") and said.getvalue().count("\n") == 1, said.getvalue()
            assert not started and not folder.exists()
        else:
            records = store.read_whole(folder).records
            assert all(illegal(cell, SITE) is None for cell in started)
            assert len(started) == sum(r.status != "skipped" for r in records)

    check()
    assert outcomes >= {0, 2}
    assert {file.name for file in tmp_path.iterdir()} <= {"suite.yaml", "run"}
    assert not Path("/tmp/hpbench-was-here").exists()


def check_layouts(examples: int) -> None:
    @settings(max_examples=examples, phases=PHASES)
    @given(text=layouts)
    def check(text: str) -> None:
        try:
            layout = Layout.parse(text)
        except UsageError as error:
            assert "\n" not in str(error)
            return
        assert Layout.parse(str(layout)) == layout

    check()


def test_suites(started: list[Cell], tmp_path: Path) -> None:
    check_suites(started, tmp_path, 150)


def test_layouts() -> None:
    check_layouts(500)


@pytest.mark.slow
def test_many_suites(started: list[Cell], tmp_path: Path) -> None:
    check_suites(started, tmp_path, 10_000)


@pytest.mark.slow
def test_many_layouts() -> None:
    check_layouts(10_000)
