"""Sites as text."""

import pytest

from benchmarks.errors import UsageError
from benchmarks.site import Site, parse_bytes


def test_a_node_is_written_and_read():
    site = Site.parse("8xcuda:80GiB")
    assert (site.kind, site.count, site.memory_bytes) == ("cuda", 8, 80 * 1024**3)
    assert str(site) == "8xcuda:80GiB"


def test_memory_may_be_unknown():
    assert Site.parse("2xcpu").memory_bytes == 0


@pytest.mark.parametrize("text", ["8", "8xtpu", "cuda:80GiB", "8xcuda:80", "8xcuda:lots"])
def test_what_cannot_be_read(text: str):
    with pytest.raises(UsageError, match="for example"):
        Site.parse(text)


def test_units():
    assert parse_bytes("1.5KiB") == 1536 and parse_bytes("2GB") == 2_000_000_000
