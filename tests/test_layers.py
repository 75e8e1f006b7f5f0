"""The layers of the design, and that no implementation is known by name outside its own file."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import registry

ROOT = Path(__file__).parents[1]

ORDINARY = {"hand", "manual", "devices", "csv", "interleaved", "fairscale", "deepspeed"}
"""Implementations whose names are ordinary words, and names of fields or packages, too. Elsewhere they are taken for an
implementation only in a written layout, an import, or a comparison with a layout's implementation."""

IMPLEMENTATIONS = {
    name: registry.module(folder, name).replace(".", "/") + ".py"
    for folder in registry.AXES.values()
    for name in registry.names(folder)
}

SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(ROOT / "harness").rglob("*.py"),
        *(path for folder in registry.AXES.values() for path in (ROOT / "benchmarks" / folder).glob("*.py")),
        *(ROOT / "benchmarks").glob("*.py"),
    ]
)

GRAMMAR = "benchmarks/layout.py"
"""Holds each axis's default implementation, and examples of the grammar."""


def names_in(source: str) -> set[str]:
    """The implementations that a file's text names: distinctive names as a word anywhere, comments included, but not in
    the names of torch's own modules."""
    words = set(re.findall(r"[A-Za-z0-9_]+", re.sub(r"\btorch(\.\w+)+", "", source)))
    found = {name for name in IMPLEMENTATIONS if name not in ORDINARY and name.replace("-", "_") in words}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {name for name in ORDINARY if re.search(rf"\b(dp|tp|pp)(=[0-9x*]+)?:{name}\b", node.value)}
        elif isinstance(node, ast.Compare) and "implementation" in ast.unparse(node):
            found |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and n.value in ORDINARY}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imported = ast.unparse(node).replace(".", " ").split()
            found |= ORDINARY.intersection(imported) if "benchmarks" in imported else set()
    return found


@pytest.mark.parametrize("path", SOURCES)
def test_no_implementation_is_named_outside_its_file(path):
    if path == GRAMMAR:
        return
    named = names_in((ROOT / path).read_text())
    assert {name for name in named if IMPLEMENTATIONS[name] != path} == set()


@pytest.mark.parametrize(
    "source, named",
    [
        ("x = 1  # as ddp does", {"ddp"}),
        ("if cell.layout.get('dp').implementation == 'fsdp': pass", {"fsdp"}),
        ("# by hand, on all devices, in manual mode", set()),
        ("if axis.implementation == 'hand': pass", {"hand"}),
        ("if 'manual' in {a.implementation for a in axes}: pass", {"manual"}),
        ("columns = ['devices', 'world']", set()),
        ("layout = 'pp=2:devices'", {"devices"}),
        ("from benchmarks.pipeline_parallel import manual", {"manual"}),
        ("import benchmarks.tensor_parallel.hand", {"hand"}),
        ("devices = cell.devices", set()),
        ("import torch.distributed.fsdp", set()),
        ("from torch.nn.parallel import DistributedDataParallel as DDP", set()),
    ],
)
def test_the_search_for_names_can_fail(source, named):
    assert names_in(source) == named


def test_import_contracts():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
