"""A run folder: what was asked for, where it ran, and one line of JSON for each cell as it ends. Imports no torch.

    run.json          what was asked for: suite, arguments, versions, and every cell in the order in which it runs
    environment.json  the machine and its software
    records.jsonl     one record a line
    records.torn      where a killed writer left half a line, that half
    records.retried   records whose cells were run again
    logs/  plots/  report.html  summary.csv

A line of `records.jsonl` is complete or absent: it is appended by one `write` and then flushed to disk, and
whatever stands behind the last line end is not a line.
"""

from harness.store.folder import (
    ENVIRONMENT,
    LOGS,
    RECORDS,
    RETRIED,
    RUN,
    TORN,
    check_new,
    create,
    holder,
    inside,
    locked,
    write_json,
)
from harness.store.lines import BadLine, NoRoom, append, mend
from harness.store.reading import Run, read, read_whole, set_aside

__all__ = [
    "ENVIRONMENT",
    "LOGS",
    "RECORDS",
    "RETRIED",
    "RUN",
    "TORN",
    "BadLine",
    "NoRoom",
    "Run",
    "append",
    "check_new",
    "create",
    "holder",
    "inside",
    "locked",
    "mend",
    "read",
    "read_whole",
    "set_aside",
    "write_json",
]
