"""How it is measured: cells are launched, verified, timed, probed and recorded."""

import sys
from pathlib import Path

# FairScale 0.4.13 installs its own benchmarks as a top-level package of the same name (see RECORD in its dist-info), which an
# editable install of ours comes after. To go when FairScale is no longer supported.
sys.path.insert(0, str(Path(__file__).parents[1]))
