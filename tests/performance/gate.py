"""Real gates on this machine: how often one of two equal states raises a false alarm, and how often a slowed strategy is
caught.

    python tests/performance/gate.py [--same 20] [--slowed 10] [--calibration 10] [--layouts 'single;dp=2:ddp'] [--out DIR]

Calibrates first. Equal states are one commit against itself. The slowed state is a commit, in a clone, in which the update of
`dp=2:ddp` sleeps for the larger of 10 % and four times the cell's calibrated spread of its median step. Each gate is
`hpbench gate` as anybody would call it. On two cores a gate of the two cells takes one to two minutes, all of it about
45 minutes; `gate.txt` is what it printed. Exit status 1: an equal state regressed or improved, or fewer than nine in ten
slowed ones were caught.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import yaml

from harness import golden, store
from harness.calibrate import calibrate
from harness.cli import main as hpbench
from harness.launch.local import ROOT

SLOWED_LAYOUT, SLOWED_FILE = "dp=2:ddp", "benchmarks/data_parallel/ddp.py"
SLEEP = """

import time  # noqa: E402

_wrap = Strategy.wrap


def _slowed(self, *args):
    replica = _wrap(self, *args)
    update = replica.update

    def slow_update(**kwargs):
        time.sleep({seconds})
        return update(**kwargs)

    replica.update = slow_update
    return replica


Strategy.wrap = _slowed
"""
PROTOCOL = {"warmup_steps": 10, "measure_steps": 40, "measure_seconds": 0}


def main() -> int:
    """Run all gates and print what they said; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", type=int, default=20, help="gates of a commit against itself")
    parser.add_argument("--slowed", type=int, default=10, help="gates of a commit against a slowed one")
    parser.add_argument("--calibration", type=int, default=10, help="runs that spreads are taken from")
    parser.add_argument("--layouts", default=f"single;{SLOWED_LAYOUT}", help="cells of llama-tiny")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--max-pairs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="folder for all runs; default: a temporary one")
    given = parser.parse_args()
    out = (given.out or Path(tempfile.mkdtemp(prefix="hpbench-gates-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    known = out / "golden"

    suite = _suite(out / "cells.yaml", given.layouts.split(";"))
    calibrate(str(suite), (), given.calibration, out / "calibration", known)
    clone, fraction = _slowed_clone(out, known)

    same = [_gate(suite, clone, "plain", out / f"same-{i + 1}", known, given) for i in range(given.same)]
    only = _suite(out / "slowed.yaml", [SLOWED_LAYOUT])
    slowed = [_gate(only, clone, "slowed", out / f"slowed-{i + 1}", known, given) for i in range(given.slowed)]

    alarms = sum(word in ("regressed", "improved") for words in same for word in words.values())
    caught = sum(words.get(f"{SLOWED_LAYOUT} step_seconds") == "regressed" for words in slowed)
    print(f"\nequal states: {given.same} gates, {alarms} false alarms; {dict(Counter(w for g in same for w in g.values()))}")
    print(f"slowed by {fraction:.0%}: caught in {caught} of {given.slowed} gates")
    print(f"runs: {out}")
    return 0 if alarms == 0 and caught >= 0.9 * given.slowed else 1


def _suite(path: Path, layouts: list[str]) -> Path:
    cells = [{"model": "llama-tiny", "layout": layouts, "protocol": PROTOCOL}]
    path.write_text(yaml.safe_dump({"description": "cells of real gates", "cells": cells}))
    return path


def _slowed_clone(out: Path, known: Path) -> tuple[Path, float]:
    """A clone with the tags `plain` and `slowed`, and by how much the latter is slower."""
    runs = [store.read(path.parent) for path in sorted((out / "calibration").glob(f"*/{store.RUN}"))]
    records = [r for run in runs for r in run.records if str(r.cell.layout) == SLOWED_LAYOUT and r.status == "ok"]
    median = statistics.median(statistics.median(record.samples.step_seconds) for record in records)
    spread = golden.spreads_for(runs[0].environment, known).get(records[0].cell_id, 0.0)
    fraction = max(0.10, 4 * spread)
    clone = out / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    git = ["git", "-C", clone, "-c", "user.name=hpbench", "-c", "user.email=hpbench@localhost"]
    subprocess.run([*git, "tag", "plain"], check=True)
    with (clone / SLOWED_FILE).open("a") as file:
        file.write(SLEEP.format(seconds=fraction * median))
    subprocess.run([*git, "commit", "-qam", "Slowed on purpose"], check=True)
    subprocess.run([*git, "tag", "slowed"], check=True)
    print(f"{SLOWED_LAYOUT}: median step {median * 1e3:.2f} ms, spread {spread:.1%}, slowed by {fraction:.0%}", flush=True)
    return clone, fraction


def _gate(suite: Path, clone: Path, head: str, out: Path, known: Path, given: argparse.Namespace) -> dict[str, str]:
    """One gate; "layout metric" -> word."""
    pairs = ["--pairs", str(given.pairs), "--max-pairs", str(given.max_pairs)]
    refs = ["--project", str(clone), "--base", "plain", "--head", head]
    hpbench(["gate", str(suite), *refs, *pairs, "--golden", str(known), "--out", str(out)])
    verdicts = json.loads((out / "gate.json").read_text())["verdicts"]
    words = {f"{v['name'].split()[1]} {v['metric']}".strip(): v["word"] for v in verdicts}
    print(f"{out.name}: " + ", ".join(f"{name} {word}" for name, word in words.items() if "step_seconds" in name), flush=True)
    return words


if __name__ == "__main__":
    sys.exit(main())
