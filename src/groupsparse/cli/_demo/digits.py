"""The data of parts two and three: 1797 scanned digits, 8 × 8 pixels, that scikit-learn ships."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import missing_extra

SIDE = 8


def load() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The images, one per row with entries in [0, 1], and which digit each one shows."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise missing_extra("scikit-learn", "sklearn") from error
    found: Any = load_digits()
    return found.data / 16.0, found.target.astype(np.int64)


def one_of_each(labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where the first image of each digit is."""
    return np.array([int(np.flatnonzero(labels == digit)[0]) for digit in range(10)])
