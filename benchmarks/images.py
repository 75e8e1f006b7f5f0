"""Real images with labels: the handwritten digits that scikit-learn brings along, so that nothing has to be fetched.

1797 images of 8 x 8 grey values from 0 to 16, of the digits 0 to 9 (Alpaydin and Kaynak, Optical Recognition of
Handwritten Digits, UCI Machine Learning Repository, 1998). As with text, batches follow from seed and step alone.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import random
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CLASSES = 10
SIDE = 8
"""Height and width of an image as it is stored."""


class Digits:
    """The digits as batches of images.

    Args:
        seed: with the step's number it decides which images a batch has.
        side: height and width to which images are resized.
        channels: how often the grey values stand side by side; 0: images are flat rows of `side * side` values.
    """

    def __init__(self, seed: int, *, side: int = SIDE, channels: int = 0):
        self._seed, self._side, self._channels = seed, side, channels
        self._table = _read()

    def batch(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Images of values from -1 to 1, (rows, channels, side, side) or flat, and labels (rows,), int64."""
        draw = random.Random(f"{self._seed}/{step}")
        chosen = torch.from_numpy(self._table[[draw.randrange(len(self._table)) for _ in range(rows)]])
        images = chosen[:, :-1].view(rows, 1, SIDE, SIDE).float() / 8 - 1
        if self._side != SIDE:
            images = F.interpolate(images, size=(self._side, self._side), mode="bilinear")
        images = images.repeat(1, self._channels, 1, 1) if self._channels else images.flatten(1)
        return images, chosen[:, -1].long()

    def describe(self) -> dict[str, str | int]:
        """`source`, `sha256` of pixels and labels, and the number of `images`."""
        digest = hashlib.sha256(self._table.tobytes()).hexdigest()
        return {"source": "scikit-learn digits", "sha256": digest, "images": len(self._table)}


@cache
def _read() -> np.ndarray:
    """One row an image: 64 grey values, then the label; uint8.

    The file is read where the package has it: `sklearn.datasets.load_digits` gives the same, but to import it costs every
    process of every cell more than a second.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("no module named 'sklearn': pip install scikit-learn", name="sklearn")
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.uint8)
