"""How processes are started: one file for each way."""
