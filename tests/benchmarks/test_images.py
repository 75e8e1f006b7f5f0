"""Images and labels: scikit-learn's own, and the same batches everywhere."""

from __future__ import annotations

import hashlib

import pytest
import torch
from sklearn.datasets import load_digits

from benchmarks import images
from benchmarks.images import Digits


def test_the_digits_are_scikit_learns() -> None:
    known = {tuple(pixels): label for pixels, label in zip(*load_digits(return_X_y=True), strict=True)}
    pixels, labels = Digits(0).batch(0, 500)
    assert pixels.shape == (500, 64) and labels.dtype == torch.int64
    assert [known[tuple(row)] for row in ((pixels + 1) * 8).tolist()] == labels.tolist()
    assert set(labels.tolist()) == set(range(images.CLASSES))


def test_batches_follow_from_seed_and_step_alone() -> None:
    def batch(seed: int, step: int) -> torch.Tensor:
        return Digits(seed).batch(step, 8)[0]

    assert torch.equal(batch(1, 2), batch(1, 2))
    assert not torch.equal(batch(1, 2), batch(1, 3))
    assert not torch.equal(batch(1, 2), batch(2, 2))


def test_images_are_resized_between_their_neighbours_and_repeated() -> None:
    small = Digits(0).batch(3, 4)[0].view(4, 8, 8)
    large, labels = Digits(0, side=16, channels=3).batch(3, 4)
    assert large.shape == (4, 3, 16, 16) and labels.shape == (4,)
    assert torch.equal(large[:, 0], large[:, 1]) and torch.equal(large[:, 0], large[:, 2])
    # Twice as large, a new pixel lies a quarter of the way to the next old one in each direction.
    expected = (9 * small[:, 2, 5] + 3 * small[:, 1, 5] + 3 * small[:, 2, 4] + small[:, 1, 4]) / 16
    torch.testing.assert_close(large[:, 0, 4, 10], expected)


def test_values_reach_from_minus_one_to_one() -> None:
    pixels, _ = Digits(0).batch(0, 500)
    assert (pixels.min().item(), pixels.max().item()) == (-1.0, 1.0)


def test_the_digest_is_that_of_pixels_and_labels() -> None:
    digits = load_digits()
    table = torch.cat((torch.from_numpy(digits.data), torch.from_numpy(digits.target)[:, None]), dim=1).to(torch.uint8)
    expected = hashlib.sha256(table.contiguous().numpy().tobytes()).hexdigest()
    assert Digits(0).describe() == {"source": "scikit-learn digits", "sha256": expected, "images": 1797}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        images._read.__wrapped__()
