"""A guess at the root from some of the data, and how far from it the root may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..dual import Point, find_root
from ..layout import Block
from . import _loops
from .numba_parts import Array, Part, thinned

SAMPLE = 1 << 18  # entries to look at before the scan, at most
FEW = 1 << 13  # entries to begin with
DESCENT = 12  # of Newton's steps with few entries
LOWEST = 3.0  # ratio S/√Q that entries thinned out may be left with
STEPS = 4  # of secants on the whole sample
STRIDE = 0.03  # of the first secant, relative
# The root is looked for so many standard errors around the guess: a wider bracket costs every call
# more than one in a hundred loses that misses the root and scans again.
ERRORS = 3.0


class Sample:
    """Some of the vectors of a part, or some of the entries of each, standing for all."""

    def __init__(self, part: Part, budget: int, least: int) -> None:
        values = part.sample(budget, least)
        rows = values if values.ndim == 2 else values[0].T
        count, length = rows.shape
        self.vectors, self.beta, self.rate = part.vectors, float(part.beta[0]), float(part.rate[0])
        self.share = length / part.block.length
        alike: Callable[[Block], Part] = type(part)
        self.part = alike(Block(values, None, self.beta, 0.0, self.rate))
        few = min(max(8, FEW // length), max(1, 4 * FEW // least))
        some = rows[:: max(1, count // few)]
        some = thinned(some, max(FEW // len(some), least))
        self.few: Array = np.abs(some, dtype=np.float64, order="C")
        # k of n entries: s and q shrink by k/n, so s/√q shrinks by √(k/n).
        self.few_beta = self.beta * math.sqrt(part.block.length / some.shape[1])
        self.few_beta *= self.vectors / len(some)
        self.excess = np.empty_like(self.few)
        self.s, self.q = np.empty((2, len(some)))

    def evaluate(self, mu: float) -> tuple[float, float]:
        """Total and slope as a few of the vectors see them."""
        point = self.descend(mu, 1, 0.0, 0.0)
        return point.total, point.slope

    def descend(self, mu: float, most: int, level: float, tolerance: float) -> Point:
        """Where a few of Newton's steps from μ lead."""
        mu, total, slope, *_ = _loops.newton(
            self.few, mu, 0.0, most, level, tolerance, 0.0, math.inf, self.rate, self.few_beta,
            self.s, self.q, self.excess,
        )  # fmt: skip
        return Point(mu, total, slope)

    def measure(self, mu: float) -> tuple[float, float]:
        """The total as the whole sample sees it, and the variance of that."""
        part = self.part
        for scan in part.scan_tasks(mu, mu):
            scan()
        part.settle(False)
        s, q, active = part.s, part.q, part.count
        if part.pieces > 1:
            s, q, active = (x.reshape(-1, part.pieces).sum(axis=1) for x in (s, q, active))
        term = np.where(q > 0.0, s / np.sqrt(self.share * q), 1.0)
        variance = float(term.var()) * (1.0 - len(term) / self.vectors)
        if self.share < 1.0:
            # Of the entries above t of one vector k were seen, which leaves s/√q uncertain by about
            # √(1/2k): that is what it is for an exponential tail.
            within = (term * term / np.maximum(active, 1.0)).mean()
            variance += 0.5 * (1.0 - self.share) * float(within)
        scale = self.vectors * self.beta
        return scale * float(term.mean()), scale * scale * variance / len(term)


def sampled_root(parts: Sequence[Part], level: float) -> tuple[float, float] | None:
    """The root as a sample sees it, and how far around it to look; None where it sees none."""
    size = sum(part.size for part in parts)
    budget = min(max(size // 16, 1 << 14), SAMPLE)
    # k of n entries make S/√Q smaller by √(k/n), and it cannot be less than 1: k must not be so few
    # that the ratio to be reached, on the average over the vectors, comes near to that.
    ratio = level / sum(part.vectors * float(part.beta[0]) for part in parts)
    shares = [max(1, budget * part.size // size) for part in parts]
    least = [_least(part.block.length, ratio) for part in parts]
    if any(few > 4 * share for few, share in zip(least, shares, strict=True)):
        return None  # a sample that is true would be too large
    samples = [Sample(*each) for each in zip(parts, shares, least, strict=True)]

    def evaluate(mu: float) -> tuple[float, float]:
        pairs = [sample.evaluate(mu) for sample in samples]
        return sum(total for total, _ in pairs), sum(slope for _, slope in pairs)

    near = 0.01 * level
    alone = len(samples) == 1
    known = [samples[0].descend(0.0, DESCENT, level, near)] if alone else []
    root = find_root(evaluate, level, near, lambda: math.inf, known=known)
    mu = root.mu
    if root.jump is not None or not 0.0 < mu < math.inf:
        return None
    # From here on secants: a vector with two nearly equal entries left has a slope without bound.
    before = mu * (1.0 - STRIDE)
    slope = (evaluate(mu)[0] - evaluate(before)[0]) / (mu - before)
    last = math.inf
    for _ in range(STEPS):
        with np.errstate(all="ignore"):  # what leaves the range is noticed in the scan
            measured = [sample.measure(mu) for sample in samples]
        total = sum(found for found, _ in measured)
        if last < math.inf:
            slope = (total - last) / (mu - before)
        if not slope < 0.0:
            return None
        step = (level - total) / slope
        if abs(step) < 0.1 * mu:
            error = math.sqrt(sum(variance for _, variance in measured))
            reach = ERRORS * error / -slope + 0.2 * abs(step) + 1e-5 * mu
            return mu + step, reach
        before, mu, last = mu, mu + step, total
        if not 0.0 < mu < math.inf:
            return None
    return None


def _least(length: int, ratio: float) -> int:
    return int(min(length, max(1024.0, length * (LOWEST / ratio) ** 2)))
