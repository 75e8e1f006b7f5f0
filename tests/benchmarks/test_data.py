"""Text and batches: the same everywhere, real, and refused where they cannot be."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.cell import STANDARD_LIBRARY
from benchmarks.data import STANDARD_LIBRARY_BYTES, Text, check_source, share, spread
from benchmarks.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def alphabet(tmp_path: Path) -> Path:
    """1000 bytes; byte i is i % 251, so that a row tells where it starts."""
    path = tmp_path / "alphabet.txt"
    path.write_bytes(bytes(i % 251 for i in range(1000)))
    return path


def read(tokens: torch.Tensor, vocabulary: int = 256) -> torch.Tensor:
    """The bytes behind tokens: 23 undoes 167, as 23 x 167 = 15 x 256 + 1."""
    return (tokens // (vocabulary // 256) - 13) * 23 % 256


def test_rows_are_pieces_of_the_text_and_targets_the_next_bytes(alphabet: Path) -> None:
    inputs, targets = Text(str(alphabet), seed=3).batch(step=5, rows=6, sequence=40, vocabulary=256)
    assert inputs.shape == targets.shape == (6, 40)
    assert inputs.dtype == targets.dtype == torch.int64
    for row, target in zip(read(inputs), read(targets), strict=True):
        assert torch.equal(row, (row[0] + torch.arange(40)) % 251)
        assert torch.equal(target, (row[0] + 1 + torch.arange(40)) % 251)


@pytest.mark.parametrize("vocabulary", [256, 32000, 50257, 128256])
def test_each_byte_has_a_token_of_its_own(vocabulary: int) -> None:
    tokens = spread(torch.arange(256), vocabulary)
    assert tokens.unique().numel() == 256 and tokens.min() >= 0 and tokens.max() < vocabulary
    assert torch.equal(read(tokens, vocabulary), torch.arange(256))


def test_text_reaches_every_part_of_a_vocabulary() -> None:
    inputs, _ = Text(STANDARD_LIBRARY, 0).batch(0, rows=8, sequence=64, vocabulary=256)
    for degree in (2, 4, 8):
        shares = torch.bincount(inputs.flatten() // (256 // degree), minlength=degree) / inputs.numel()
        assert shares.min() > 0.2 / degree


def test_batches_follow_from_seed_and_step_alone(alphabet: Path) -> None:
    def batch(seed: int, step: int) -> torch.Tensor:
        return Text(str(alphabet), seed).batch(step, rows=8, sequence=16, vocabulary=256)[0]

    assert torch.equal(batch(1, 2), batch(1, 2))
    assert not torch.equal(batch(1, 2), batch(1, 3))
    assert not torch.equal(batch(1, 2), batch(2, 2))


def test_batches_are_the_same_in_every_process(alphabet: Path) -> None:
    code = (
        "import sys; from benchmarks.data import Text\n"
        "print(Text(sys.argv[1], 7).batch(1, rows=4, sequence=8, vocabulary=256)[0].tolist())"
    )
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    command = [sys.executable, "-c", code, str(alphabet)]
    first, second = (subprocess.run(command, check=True, capture_output=True, env=e, cwd=ROOT).stdout for e in environments)
    assert first == second != b""


def test_all_starts_of_a_short_text_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"abcd")
    inputs, targets = Text(str(path), seed=0).batch(0, rows=200, sequence=2, vocabulary=256)
    assert {bytes(row.tolist()) for row in read(inputs)} == {b"ab", b"bc"}
    assert {bytes(row.tolist()) for row in read(targets)} == {b"bc", b"cd"}
    exact, _ = Text(str(path), seed=0).batch(0, rows=2, sequence=3, vocabulary=256)
    assert bytes(read(exact)[0].tolist()) == b"abc"


def test_shares_are_the_batch_in_order(alphabet: Path) -> None:
    inputs, targets = Text(str(alphabet), seed=0).batch(0, rows=8, sequence=4, vocabulary=256)
    shares = [share(inputs, targets, rank, 4) for rank in range(4)]
    assert all(s.inputs.shape == (2, 4) for s in shares)
    assert torch.equal(torch.cat([s.inputs for s in shares]), inputs)
    assert torch.equal(torch.cat([s.targets for s in shares]), targets)


def test_the_digest_is_that_of_the_bytes(alphabet: Path) -> None:
    text = Text(str(alphabet), seed=0)
    expected = hashlib.sha256(alphabet.read_bytes()).hexdigest()
    assert text.describe() == {"source": str(alphabet), "sha256": expected, "bytes": 1000}


def test_the_standard_library_is_python_source() -> None:
    text = Text("python-stdlib", seed=0)
    description = text.describe()
    assert description["source"] == "python-stdlib"
    assert description["bytes"] == STANDARD_LIBRARY_BYTES
    inputs, _ = text.batch(0, rows=64, sequence=256, vocabulary=256)
    content = b"".join(bytes(row.tolist()) for row in read(inputs))
    assert content.count(b"def ") > 10 and content.count(b"self") > 10


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, ["does not exist", "--text"]),
        (lambda path: path.mkdir(), ["is not a file", "--text"]),
        (lambda path: path.write_bytes(b"x" * 64), ["has 64 bytes", "64 tokens needs 65", "shorter sequence"]),
    ],
)
def test_a_bad_text_says_what_to_do(tmp_path: Path, make, words: list[str]) -> None:
    path = tmp_path / "text"
    make(path)
    with pytest.raises(UsageError) as error:
        check_source(str(path), sequence=64)
    assert all(word in str(error.value) for word in [str(path), *words]), str(error.value)


def test_a_text_may_be_exactly_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * 65)
    check_source(str(path), sequence=64)


def test_a_batch_refuses_what_cannot_be(alphabet: Path) -> None:
    text = Text(str(alphabet), seed=0)
    with pytest.raises(UsageError, match="1000 bytes"):
        text.batch(0, rows=1, sequence=1000, vocabulary=256)
    with pytest.raises(UsageError, match="vocabulary of 255"):
        text.batch(0, rows=1, sequence=10, vocabulary=255)


def test_sources_are_checked_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from benchmarks import data; data.check_source('python-stdlib', 512)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
