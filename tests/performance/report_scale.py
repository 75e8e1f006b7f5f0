"""How long a report of a large run takes, how much memory, and how soon its page opens and filters in Chromium.

    python tests/performance/report_scale.py [--cells 20000]

Wanted: `report` within 15 s and 1 GiB, the page open and each filter done within 1 s.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.launch.local import ROOT
from tests.harness.report import chromium, many

FILTER = """(() => {
  const start = performance.now(), search = document.getElementById("search");
  search.value = "fsdp bf16";
  search.dispatchEvent(new Event("input"));
  document.body.offsetHeight;
  return performance.now() - start;
})()"""


def draw(folder: Path) -> None:
    """Draw in a process of its own and print what it took."""
    command = [sys.executable, "-m", "harness.cli", "report", str(folder)]
    start = time.monotonic()
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    seconds, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    size = (folder / "report.html").stat().st_size / 2**20
    processor, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10
    print(f"report: {seconds:.1f} s, of which {processor:.1f} s of processor; {memory:.0f} MiB")
    print(f"page: {size:.1f} MiB")


def browse(page: Path) -> None:
    """Open the page and filter it."""
    with chromium.tab() as tab:
        tab.open(page)
        opened = tab.value("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
        print(f"open: {opened:.2f} s until loaded, the table filled; filter: {tab.value(FILTER) / 1000:.3f} s")


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = many.folder(Path(place, "run"), arguments.cells)
        draw(folder)
        print(f"browser: {chromium.missing()}") if chromium.missing() else browse(folder / "report.html")


if __name__ == "__main__":
    main()
