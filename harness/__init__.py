"""How it is measured: cells are launched, verified, timed, probed and recorded."""
