"""Numbers in 120 decimal digits, and the Hoyer measure in them: the ground that the oracle uses."""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

PRECISE = decimal.Context(prec=120, Emin=-99999, Emax=99999)
ZERO, ONE = Decimal(0), Decimal(1)
Numbers = Sequence[float] | np.ndarray


def euclid(numbers: Sequence[Decimal]) -> Decimal:
    return sum((x * x for x in numbers), ZERO).sqrt()


def decimals(numbers: Numbers) -> list[Decimal]:
    return [Decimal(float(x)) for x in numbers]


def relative(weights: Numbers | None, length: int) -> list[Decimal]:
    """The weights over their largest, which changes neither the measure nor the projection."""
    if weights is None:
        return [ONE] * length
    exact = decimals(weights)
    largest = max(exact)
    return [w / largest for w in exact]


def exact_hoyer(vector: Numbers, weights: Numbers | None) -> Decimal:
    entries = [abs(c) for c in decimals(vector)]
    weight = relative(weights, len(entries))
    if not any(entries):
        return ONE
    norm = euclid(weight)
    ratio = sum((w * c for w, c in zip(weight, entries, strict=True)), ZERO) / euclid(entries)
    return (norm - ratio) / (norm - min(weight))


def hoyer(vector: Numbers, weights: Numbers | None = None) -> float:
    """The (weighted) Hoyer measure of one vector of length two or more; a zero vector has 1."""
    return average([vector], None if weights is None else [weights])


def average(vectors: Sequence[Numbers], weights: Sequence[Numbers] | None = None) -> float:
    """The average Hoyer measure; vectors of length 1 are not counted."""
    pairs = zip(vectors, weights or [None] * len(vectors), strict=True)
    with decimal.localcontext(PRECISE):
        values = [exact_hoyer(v, w) for v, w in pairs if len(v) > 1]
        return float(sum(values, ZERO) / len(values))


def average_of_rows(matrix: np.ndarray) -> float:
    """The same, unweighted, for more (nonzero) rows than decimals can digest."""
    rows = np.abs(matrix).astype(np.longdouble)
    rows /= rows.max(axis=1, keepdims=True)
    ratio = rows.sum(axis=1) / np.sqrt((rows * rows).sum(axis=1))
    root = np.sqrt(np.longdouble(matrix.shape[1]))
    return float(math.fsum((root - ratio) / (root - 1)) / len(matrix))
