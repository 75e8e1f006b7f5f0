"""JUnit XML, which CI servers show as tests: a cell is a test case, its figures are properties."""

from __future__ import annotations

from junitparser import Error, Failure, JUnitXml, Properties, Property, Skipped, TestCase, TestSuite

from harness.export import latest, names
from harness.report.words import STATUS_WORDS, plain
from harness.store import Run

FAILED = ("diverged", "oom")
"""How a cell ends that did what it does; in other ways it did not come to its end, which JUnit calls an error."""


def export(run: Run) -> str:
    """One suite, named like the suite; times are the seconds that the harness spent on a cell."""
    records = latest(run.records)
    titles = names(records)
    suite = TestSuite(plain(str(run.run.get("suite", "hpbench"))))
    for record in records:
        case = TestCase(plain(titles[record.cell_id]), classname=f"hpbench.{record.cell.model}")
        case.time = sum(record.durations.values())
        reason = plain(f"{STATUS_WORDS[record.status]}: {record.reason or 'no reason was recorded'}")
        if record.status == "skipped":
            case.result = [Skipped(reason)]
        elif record.status != "ok":
            outcome = (Failure if record.status in FAILED else Error)(reason, record.status)
            outcome.text = "\n".join(plain(line) for line in (record.log_tail or "").splitlines())
            case.result = [outcome]
        properties = Properties()
        properties.add_property(Property("cell_id", record.cell_id))
        for name, metric in record.metrics.items() if record.status == "ok" else ():
            properties.add_property(Property(f"{name} ({metric.unit})", repr(metric.value)))
        case.append(properties)
        suite.add_testcase(case)
    xml = JUnitXml("hpbench")
    xml.add_testsuite(suite)
    xml.update_statistics()
    return xml.tostring().decode() + "\n"
