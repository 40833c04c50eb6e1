"""The way most sparse projections are written, sort every vector first, as a competitor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def project_rows_by_sorting(rows: NDArray[np.float32], target: float) -> NDArray[np.float32]:
    """Project the rows to the average Hoyer `target`, from their sorted magnitudes.

    Once every row is sorted and summed up, the sums over the entries above a threshold are table
    look-ups, and the multiplier is found by bisection. All the time goes into the preparation.
    """
    magnitudes = np.abs(rows)
    ordered = np.sort(magnitudes, axis=1)[:, ::-1].astype(np.float64)
    sums = np.cumsum(ordered, axis=1)
    squares = np.cumsum(ordered**2, axis=1)
    root = np.sqrt(rows.shape[1])
    wanted = len(rows) * (root - target * (root - 1))

    def sum_of_norm_ratios(threshold: float) -> float:
        active = np.maximum((ordered > threshold).sum(axis=1), 1)
        at = np.arange(len(rows)), active - 1
        first, second = sums[at], squares[at]
        norms = np.sqrt(second - 2 * threshold * first + active * threshold**2)
        return float(((first - active * threshold) / norms).sum())

    low, high = 0.0, float(ordered[:, 1].max())
    for _ in range(30):
        middle = (low + high) / 2
        if sum_of_norm_ratios(middle) > wanted:
            low = middle
        else:
            high = middle
    shrunk = np.maximum(magnitudes - np.float32(low), 0)
    scale = (magnitudes * shrunk).sum(axis=1) / (shrunk**2).sum(axis=1)
    return np.sign(rows) * shrunk * scale[:, None].astype(np.float32)
