import pytest

from harness.record import Metric
from harness.report import words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 bytes"), (1023, "bytes", "1,023 bytes"), (3 * 2**20 / 2, "bytes", "1.5 MiB"), (2**41, "bytes", "2 TiB"),
        (0.0123, "s", "12.3 ms"), (2.5, "s", "2.5 s"), (4e-6, "s", "4 µs"), (3.1e12, "FLOP/s", "3.1 TFLOP/s"),
        (12345.6, "tokens/s", "12,346 tokens/s"), (0.3333, "fraction", "0.333 fraction"),
    ],
)  # fmt: skip
def test_amounts(value, unit, text):
    assert words.amount(value, unit) == text


def test_intervals_have_the_unit_of_their_value():
    assert words.with_interval(Metric(value=0.010, unit="s", low=0.009, high=0.0115)) == "10 ms (95 % interval 9 to 11.5)"
    assert words.with_interval(Metric(value=1.0, unit="s")) == "1 s"


def test_errors():
    assert [words.error(value) for value in (2.14e-7, 0.0, None, float("nan"))] == ["2.1e-07", "0.0e+00", "–", "–"]


def test_names_of_files():
    assert words.slug("llama-8b[blocks=4]") == "llama-8b-blocks-4"
    assert words.slug("../../etc/passwd") == "etc-passwd" and words.slug("///") == "unnamed"


def test_counts_of_caveats():
    assert words.counted(["cpu", "unstable", "cpu"], of=2) == "cpu (all 2 cells), unstable (1 of 2)"
    assert words.counted(["unstable", "cpu"], of=1) == "cpu, unstable"
