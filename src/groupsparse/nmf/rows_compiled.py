"""Rows that each meet the target: the common case in one compiled loop.

For many short rows the general projection costs its calls, not its arithmetic. Here a row gets
Newton's method, bisected where a step leaves its bracket. One that needs more (ties, squares out of
range) stays as it was and is named, and the general projection takes it from there.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from ..kernels._loops import compiled
from .sweeps_compiled import summed

LARGEST = 1e250  # of a sum of squares; the smallest is its inverse
LONGEST = 1 << 15  # beyond it the general projection, on all cores, needs fewer passes
STEPS = 30
CLOSE = 1e-12  # of the level


def project_rows(rows: Any, hoyer: float, multipliers: Any) -> Any:
    """Project non-negative rows in place; ``multipliers`` are starts before, answers after.

    Returns the indices of the rows that are left, with their starts.
    """
    n = rows.shape[1]
    if not (1 < n <= LONGEST and hoyer < 1.0 and rows.flags.c_contiguous):
        return np.arange(len(rows))
    root = sqrt(n)
    left = np.empty(len(rows), np.intp)
    count = _project(rows, root - hoyer * (root - 1.0), 1.0 / (root - 1.0), multipliers, left)
    return left[:count]


@summed
def _sums(row: Any, t: Any) -> Any:
    """Sum, sum of squares and count of the entries of [row − t]₊."""
    total = square = active = 0.0
    for q in range(len(row)):
        d = max(row[q] - t, 0.0)
        total += d
        square += d * d
        active += d > 0.0
    return total, square, active


@compiled()
def _project(rows: Any, level: Any, beta: Any, multipliers: Any, left: Any) -> Any:
    count = 0
    for i in range(len(rows)):
        row = rows[i]
        total, square, active = _sums(row, 0.0)
        t, met = 0.0, False
        if 1.0 / LARGEST < square < LARGEST:
            met = total <= level * np.sqrt(square)  # sparse enough as it is
            low: Any = 0.0
            high: Any = np.float64(row.max())
            following = multipliers[i] * beta
            for step in range(STEPS):
                miss, slope = -1.0, 0.0  # where nothing is left of the row
                if square > 0.0:
                    length = np.sqrt(square)
                    miss = total / length - level
                    slope = (total * total / square - active) / length
                if met or abs(miss) <= CLOSE * level:
                    met = True
                    break
                low, high = (t, high) if miss > 0.0 else (low, t)
                if step > 0 or not following > 0.0:
                    following = t - miss / slope
                t = following if low < following < high else 0.5 * (low + high)
                total, square, active = _sums(row, t)
        if not met:
            left[count] = i
            count += 1
            continue
        multipliers[i] = t / beta
        if t > 0.0:
            gain = (square + t * total) / square  # xᵀc over ‖[c − t]₊‖
            for q in range(len(row)):
                row[q] = gain * max(row[q] - t, 0.0)
    return count
