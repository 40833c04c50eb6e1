"""The reference kernel: NumPy, float64, close to the formulas. It also serves all small problems.

Per vector, with t = μ·rate and d = [|c| − t w]₊:  S = Σ w d,  Q = Σ d²,  N = Σ_{d>0} w²,
total = β S/√Q,  slope = β·rate (S²/Q^{3/2} − N/√Q).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dual import Point
from ..layout import Block
from . import NotFinite, OutOfRange

Array = NDArray[np.float64]

# Sums of squares outside of this range might have lost entries that matter to over- or underflow.
LARGEST_SQUARE, SMALLEST_SQUARE = 1e200, 1e-200


class ReferenceKernel:
    """See :class:`groupsparse.kernels.Kernel`."""

    name = "reference"

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.parts = [self._part(block) for block in blocks]
        self.passes = 0

    def _part(self, block: Block) -> Part:
        return Part(block)

    def begin(self, level: float, start: float | None) -> Sequence[Point]:
        self.passes += 1
        total = slope = 0.0
        for part in self.parts:
            part_total, part_slope = part.begin()
            total += part_total
            slope += part_slope
        return [Point(0.0, total, slope)]

    def evaluate(self, mu: float) -> tuple[float, float]:
        self.passes += 1
        if len(self.parts) == 1:
            return self.parts[0].evaluate(mu)
        pairs = [part.evaluate(mu) for part in self.parts]
        return sum(total for total, _ in pairs), sum(slope for _, slope in pairs)

    def upper(self) -> float:
        return max(part.upper() for part in self.parts)

    def objective(self, mu: float) -> tuple[float, float]:
        self.passes += 1
        pairs = [part.objective(mu) for part in self.parts]
        return sum(primal for primal, _ in pairs), sum(value for _, value in pairs)

    def longest(self, mu: float) -> float:
        return max(part.longest(mu) for part in self.parts)

    def write(self, mu: float) -> None:
        self.passes += 1
        for part in self.parts:
            part.write(mu)


class Part:
    """One block: the magnitudes |c| and the sums at the last threshold."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.magnitude: Array = np.abs(block.values, dtype=np.float64)
        self.excess: Array = np.empty_like(self.magnitude)
        self.mu = -1.0
        self.threshold: Any = 0.0
        self.s = self.q = self.n = np.empty(0)

    def begin(self) -> tuple[float, float]:
        """Evaluate at 0, and raise where the sums of squares cannot be trusted."""
        total, slope = self.evaluate(0.0)
        largest, smallest = float(self.q.max()), float(self.q.min())
        if smallest < SMALLEST_SQUARE:
            smallest = float(np.where(self.magnitude.any(axis=1), self.q, 1.0).min())
        if not largest < LARGEST_SQUARE or smallest < SMALLEST_SQUARE:
            raise OutOfRange if np.isfinite(self.magnitude).all() else NotFinite
        return total, slope

    def evaluate(self, mu: float) -> tuple[float, float]:
        with np.errstate(all="ignore"):  # what leaves the range is noticed in ``begin``
            self.sum_up(mu)
            return self._reduce()

    def sum_up(self, mu: float) -> None:
        """The three sums at μ, taken around the threshold, never as S₂ − 2tS₁ + Nt²."""
        block, d = self.block, self.excess
        t = self.threshold = block.threshold(mu)
        spread = t if isinstance(t, float) else t[:, None]
        w = block.weights
        np.subtract(self.magnitude, spread if w is None else spread * w, out=d)
        np.maximum(d, 0.0, out=d)
        self.q = _squares(d)
        if w is None:
            self.s = _sum(d)
            self.n = np.count_nonzero(d, axis=1)
        else:
            self.s = (d * w).sum(axis=1)
            self.n = (w * w * (d > 0.0)).sum(axis=1)
        self.mu = mu

    def _reduce(self) -> tuple[float, float]:
        s, q, n, block = self.s, self.q, self.n, self.block
        if not q.all():  # nothing is left of some vector: it is 1-sparse
            return self._reduce_with_corners()
        inverse = 1.0 / np.sqrt(q)
        term = s * inverse
        slope = (term * term - n) * inverse
        if isinstance(block.beta, float):
            return block.beta * float(term.sum()), block.beta * float((slope * block.rate).sum())
        return float((term * block.beta).sum()), float((slope * block.beta * block.rate).sum())

    def _reduce_with_corners(self) -> tuple[float, float]:
        block, live = self.block, self.q > 0.0
        inverse = 1.0 / np.sqrt(np.where(live, self.q, 1.0))
        term = np.where(live, self.s * inverse, self._corner()[1])
        slope = np.where(live, (term * term - self.n) * inverse, 0.0)
        return float((term * block.beta).sum()), float((slope * block.beta * block.rate).sum())

    def _corner(self) -> tuple[NDArray[np.intp], Array, Array]:
        """Where the 1-sparse answer of each vector sits, its weight and its magnitude."""
        w = self.block.weights
        if w is None:
            at = self.magnitude.argmax(axis=1)
            weight: Array = np.ones(at.shape)
        else:
            at = corner_of(self.magnitude, np.broadcast_to(w, self.magnitude.shape), self.threshold)
            weight = _pick(np.broadcast_to(w, self.magnitude.shape), at)
        return at, weight, _pick(self.magnitude, at)

    def upper(self) -> float:
        """Unweighted: where the largest entry goes. Weighted: where the smallest weight wins."""
        w, rate = self.block.weights, self.block.rate
        if w is None:
            return _just_above(self.magnitude.max(axis=1) / rate)
        weight = np.broadcast_to(w, self.magnitude.shape)
        least = weight.min(axis=1, keepdims=True)
        keeper = np.where(weight == least, self.magnitude, -np.inf).max(axis=1, keepdims=True)
        # Entries of weight 0 never leave, so there every other entry has to reach zero by itself.
        lead = np.maximum(self.magnitude - np.where(least > 0.0, keeper, 0.0), 0.0)
        cost = np.where(weight > least, weight - least, np.inf)
        overtaken = (lead / cost).max(axis=1)
        emptied = np.divide(keeper, least, out=np.zeros_like(keeper), where=least > 0.0)[:, 0]
        return _just_above(np.maximum(overtaken, emptied) / rate)

    def objective(self, mu: float) -> tuple[float, float]:
        with np.errstate(all="ignore"):
            return self._objective(mu)

    def _objective(self, mu: float) -> tuple[float, float]:
        if mu != self.mu:
            self.sum_up(mu)
        live = self.q > 0.0
        root = np.sqrt(np.where(live, self.q, 1.0))
        _, weight, magnitude = self._corner()
        primal = np.where(live, (self.q + self.threshold * self.s) / root, magnitude)
        scale = self.block.beta / self.block.rate  # 1, but for vectors that were rescaled
        below = magnitude * scale - mu * self.block.beta * weight
        value = np.where(live, root * scale, below)
        return float((primal * scale).sum()), float(value.sum())

    def longest(self, mu: float) -> float:
        if mu != self.mu:
            self.sum_up(mu)
        live = self.q > 0.0
        length = (self.q + self.threshold * self.s) / np.sqrt(np.where(live, self.q, 1.0))
        return float(np.where(live, length, 0.0).max())

    def write(self, mu: float) -> None:
        if mu != self.mu:
            self.evaluate(mu)
        out = self.block.out
        assert out is not None
        if self.q.all():
            factor = 1.0 + self.threshold * self.s / self.q
            np.multiply(self.excess, factor[:, None], out=self.excess)
        else:
            live = self.q > 0.0
            with np.errstate(all="ignore"):
                factor = 1.0 + self.threshold * self.s / np.where(live, self.q, 1.0)
            np.multiply(self.excess, np.where(live, factor, 0.0)[:, None], out=self.excess)
            at, _, magnitude = self._corner()
            corner = np.where(live, 0.0, magnitude)
            _add_at(self.excess, at, corner)
        self.mu = -1.0  # the sums no longer belong to what is in ``excess``
        np.copysign(self.excess, self.block.values, out=self.excess)
        with np.errstate(over="ignore"):  # the range is checked before anything is handed out
            np.add(self.excess, 0.0, out=out, casting="same_kind")  # turns -0.0 into 0.0


def corner_of(magnitude: Array, weight: Array, threshold: Any) -> NDArray[np.intp]:
    """The entry that is left of each vector, argmax |c| − t w, where all of these are negative.

    Only the weights above the smallest are charged, so that a large t cannot drown the |c|. Of
    equally good corners the one with the smallest weight is the feasible one; a zero vector counts
    as 1.
    """
    t = threshold if isinstance(threshold, float) else threshold[:, None]
    depth = magnitude - t * (weight - weight.min(axis=1, keepdims=True))
    best = depth == depth.max(axis=1, keepdims=True)
    best |= ~magnitude.any(axis=1, keepdims=True)
    at: NDArray[np.intp] = np.where(best, weight, np.inf).argmin(axis=1)
    return at


def _sum(x: Array) -> Array:
    total: Array = np.add.reduce(x, axis=1)
    return total


def _squares(x: Array) -> Array:
    total: Array = np.vecdot(x, x) if x.ndim == 2 else np.einsum("anb,anb->ab", x, x)
    return total


def _pick(x: Array, at: NDArray[np.intp]) -> Array:
    picked: Array = np.take_along_axis(x, at[:, None], axis=1)[:, 0]
    return picked


def _add_at(x: Array, at: NDArray[np.intp], value: Array) -> None:
    index = at[:, None]
    np.put_along_axis(x, index, np.take_along_axis(x, index, axis=1) + value[:, None], axis=1)


def _just_above(mu: Array) -> float:
    return float(mu.max()) * (1.0 + 2.0**-50)
