"""The one number behind a projection: the root of a function that never increases.

Everything here is scalar. ``evaluate(mu)`` returns the pair (Σ βᵢ wᵢᵀxᵢ[μ], its slope); where the
sums come from (NumPy, numba, PyTorch, a cluster) is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

Evaluate = Callable[[float], tuple[float, float]]

# Bisecting the floats between 1e-308 and 1e308 to neighbours takes about 75 steps; Newton about 5.
LIMIT = 250
FLAT = 1e-9  # part of the level by which the total may fall from 0 to a root and be called constant


class Point(NamedTuple):  # made at every step, and twice as quickly as a frozen dataclass
    """``total`` = Σ βᵢ wᵢᵀxᵢ[μ] and its slope at one μ."""

    mu: float
    total: float
    slope: float


@dataclass(frozen=True, slots=True)
class Root:
    """Where the search ended.

    ``mu`` is the root. Where the function jumps over the level between two neighbouring floats,
    ``jump`` is the pair (last μ above the level, first μ below it) and ``mu`` is the second.
    """

    mu: float
    iterations: int
    met: bool
    jump: tuple[float, float] | None = None


def find_root(
    evaluate: Evaluate,
    level: float,
    tolerance: float,
    upper: Callable[[], float],
    *,
    known: Iterable[Point] = (),
    start: float | None = None,
    slack: float = 0.0,
) -> Root:
    """Find μ ≥ 0 with ``total(μ) = level``, for a ``total`` that never increases.

    Parameters
    ----------
    evaluate
        Returns total and slope at μ.
    level
        The value to reach, called k in the paper.
    tolerance
        |total − level| that counts as reached.
    upper
        Returns a μ at which nothing changes any more; called only when Newton's step fails.
    known
        Points that were evaluated before; they cost nothing.
    start
        A guess, for instance the multiplier of a similar problem.
    slack
        By how much the total may exceed the level at μ = 0 and still count as sparse enough.

    Returns
    -------
    Root
    """
    search = Search(level, tolerance, known=known, start=start, slack=slack)
    while (mu := search.propose(upper)) is not None:
        search.add(Point(mu, *evaluate(mu)))
    return search.root


class Search:
    """A bracket around the root, and where to look next.

    What :func:`find_root` does with one function, this does step by step, so that the roots of many
    functions can be looked for side by side: evaluate what ``propose`` returns, ``add`` it, and so
    on until it returns None; ``root`` is the answer then. The parameters are find_root's.
    """

    root: Root

    def __init__(
        self,
        level: float,
        tolerance: float,
        *,
        known: Iterable[Point] = (),
        start: float | None = None,
        slack: float = 0.0,
    ) -> None:
        self.level = level
        self.tolerance = tolerance
        self.slack = slack
        self.guess = start
        self.iterations = 0
        self.above: Point | None = None  # total > level: the root is to the right
        self.below: Point | None = None
        self.best = Point(0.0, math.inf, 0.0)
        self.last: Point | None = None
        self.before: Point | None = None
        self.slow = 0
        for point in known:
            self.add(point)

    def propose(self, upper: Callable[[], float]) -> float | None:
        """The next μ to evaluate; None at the end, when ``root`` has been found."""
        if self.done and self._flat() and self.iterations < LIMIT:
            self.iterations += 1
            return 0.0
        if self.done or self.iterations == LIMIT:
            self.root = Root(self.best.mu, self.iterations, met=self.done)
            return None
        guess, self.guess = self.guess, None
        if guess is not None and self.inside(guess):
            mu: float | None = guess
        elif self.above is None:
            mu = self.leftwards()
        else:
            mu = self.rightwards(upper)
        if mu is None:
            self.root = self.collapsed()
            return None
        self.iterations += 1
        return mu

    @property
    def done(self) -> bool:
        if abs(self.best.total - self.level) <= self.tolerance:
            return True
        # Nothing lies to the left of 0: already below the level there means already sparse enough.
        return self.below is not None and self.below.mu == 0.0

    def _flat(self) -> bool:
        """Whether the level may be met at 0 too, where nobody has looked: nothing moves from there
        to the best point, as for vectors whose entries are all equal. The input is the answer then.
        """
        best = self.best
        return self.above is None and best.mu > 0.0 and -best.slope * best.mu <= FLAT * self.level

    def add(self, point: Point) -> None:
        if self.below is not None and self.below.mu == 0.0:
            return  # sparse enough: no other point is the answer, though rounding may say so
        before = self._excess()
        self.before, self.last = self.last, point
        if abs(point.total - self.level) < abs(self.best.total - self.level):
            self.best = point
        if point.total > self.level + (self.slack if point.mu == 0.0 else 0.0):
            if self.above is None or point.mu >= self.above.mu:
                self.above = point
        elif self.below is None or point.mu <= self.below.mu:
            self.below = point
            if point.mu == 0.0:
                self.best = point
        # A step that leaves more than a third of the excess is a slow one.
        self.slow = self.slow + 1 if self._excess() > before / 3 else 0

    def _excess(self) -> float:
        return abs(self.best.total - self.level)

    def inside(self, mu: float) -> bool:
        left = 0.0 if self.above is None else self.above.mu
        right = math.inf if self.below is None else self.below.mu
        return left < mu < right

    def leftwards(self) -> float:
        """The next μ while every known one lies to the right of the root.

        Only where Newton's step leads past 0 is 0 itself looked at: that costs a pass, and an input
        that needs no projection is the rarer case once a guess has been made.
        """
        mu = None if self.below is None or self.slow else self._newton(self.below, 1.0)
        return mu if mu is not None and self.inside(mu) else 0.0

    def rightwards(self, upper: Callable[[], float]) -> float | None:
        """The next μ strictly inside the bracket, or None where no float is left in it."""
        above, last = self.above, self.last
        assert above is not None
        assert last is not None
        if self.slow < 3:
            for point, power in ((last, self._straight_power()), (above, 1.0)):
                mu = self._newton(point, power)
                if mu is not None and self.inside(mu):
                    return mu
        self.slow = 0
        if self.below is None:
            right = upper()
            return right if right > above.mu else None
        return _middle(above.mu, self.below.mu)

    def _newton(self, point: Point, power: float) -> float | None:
        """Newton's step for total**power, which for power 1 is the ordinary one."""
        if not point.slope < 0.0:
            return None
        ratio = self.level / point.total if point.total > 0.0 else 0.0
        if power == 1.0 or not ratio > 0.0:
            excess = point.total - self.level
        elif abs(power) < 1e-3:
            excess = -math.log(ratio) * point.total
        else:
            excess = (1.0 - ratio**power) / power * point.total
        step = excess / point.slope
        return point.mu - step if math.isfinite(step) else None

    def _straight_power(self) -> float:
        """The power of the total that was straight between the last two points.

        The total falls like 1 − μ for small μ and, on data with heavy tails, like exp(−μ) further
        out; following the bend that was seen saves a step or two.
        """
        one, two = self.before, self.last
        if one is None or two is None or not (one.slope < 0.0 and two.slope < 0.0):
            return 1.0
        if not (one.total > 0.0 and two.total > 0.0) or one.total == two.total:
            return 1.0
        ratio = two.slope / one.slope
        if not 1e-6 < ratio < 1e6:
            return 1.0
        bend = math.log(ratio) / math.log(two.total / one.total)
        return min(max(1.0 - bend, -1.0), 2.0)

    def collapsed(self) -> Root:
        above, below, iterations = self.above, self.below, self.iterations
        assert above is not None
        if below is None:
            # Even the far end is above the level, which only rounding can bring about (s = 1).
            return Root(above.mu, iterations, met=True)
        return Root(below.mu, iterations, met=True, jump=(above.mu, below.mu))


def _middle(left: float, right: float) -> float | None:
    """Halve the exponent while the ends are orders of magnitude apart, the interval after that."""
    if left == 0.0:
        middle = right * 2.0**-12
    elif right > 4.0 * left:
        middle = math.sqrt(left) * math.sqrt(right)
    else:
        middle = left + 0.5 * (right - left)
    return middle if left < middle < right else None
