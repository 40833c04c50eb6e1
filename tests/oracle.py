"""The independent truth: the group sparse projection in 120 decimal digits.

Written from the mathematics and sharing nothing with the library. Every vector is sorted once, so
that what it contributes is known in closed form between breakpoints; the breakpoints of all vectors
are searched by bisection, and only inside one smooth piece is a root found numerically.

    maximise  sum x_i . |c_i|   subject to   |x_i| = 1,  x_i >= 0,  sum beta_i w_i . x_i <= budget

For a multiplier mu and t = mu beta, one vector's best x is [|c| - t w]+ normalised. Where nothing
is positive it is the corner (one-hot vector) that maximises |c| - t w. Where the largest value is
exactly zero, on a set of tied entries, every x on those entries is best, and w.x takes every value
between its `low` and its `high`.
"""

from __future__ import annotations

import bisect
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from tests.exact import (
    ONE,
    PRECISE,
    ZERO,
    Numbers,
    average,
    average_of_rows,
    decimals,
    euclid,
    hoyer,
    relative,
)

__all__ = ["Truth", "average", "average_of_rows", "hoyer", "solve"]

# Distinct quotients of doubles are at least 1e-32 apart; rounding is at 1e-120.
SAME = Decimal("1e-70")
INFINITY = Decimal("Infinity")


@dataclass(frozen=True)
class Truth:
    """What a correct projection must return."""

    vectors: list[np.ndarray]  # float64; one of many optima unless `unique`
    multipliers: tuple[float, float]  # every multiplier in this closed interval is optimal
    primal: float  # sum of x.|c| over the counted vectors
    dual: float
    average: float  # the Hoyer average of the exact answer
    kind: str  # "feasible", "root", "tie" or "jump"
    unique: bool


@dataclass(frozen=True)
class Curve:
    """One vector: everything about it as a function of its own threshold t = mu beta."""

    entries: list[Decimal]  # |c|
    weights: list[Decimal]
    norm: Decimal  # of the weights
    beta: Decimal
    order: list[int]  # the positive entries, largest entry/weight first
    falling: list[Decimal]  # -entry/weight in that order
    sums: list[tuple[Decimal, Decimal, Decimal]]  # of w*w, w*c, c*c over the first m of that order

    def active(self, t: Decimal) -> int:
        """How many entries are clearly above t times their weight."""
        return bisect.bisect_left(self.falling, -t * (ONE + SAME))

    def smooth(self, t: Decimal) -> tuple[Decimal, Decimal]:
        """w.d and |d| for d = [|c| - t w]+; only where something is active."""
        ww, wc, cc = self.sums[self.active(t)]
        return wc - t * ww, (cc - 2 * t * wc + t * t * ww).sqrt()

    def tied(self, t: Decimal) -> tuple[list[int], bool]:
        """The maximisers of |c| - t w, lowest weight first, and whether x may mix them.

        It may where the maximum is zero.
        """
        values = [c - t * w for c, w in zip(self.entries, self.weights, strict=True)]
        best, scale = max(values), max(self.entries)
        members = [j for j, value in enumerate(values) if best - value <= SAME * scale]
        members.sort(key=lambda j: (self.weights[j], -self.entries[j], j))
        return members, abs(best) <= SAME * scale

    def range(self, t: Decimal) -> tuple[Decimal, Decimal]:
        """The lowest and the highest w.x among the best x at threshold t."""
        if self.active(t):
            inner, length = self.smooth(t)
            return inner / length, inner / length
        members, mixed = self.tied(t)
        weights = [self.weights[j] for j in members]
        return weights[0], euclid(weights) if mixed else weights[-1]

    def value(self, t: Decimal) -> Decimal:
        """The largest x.(|c| - t w) over unit x >= 0."""
        if self.active(t):
            return self.smooth(t)[1]
        return max(c - t * w for c, w in zip(self.entries, self.weights, strict=True))

    def breakpoints(self) -> list[Decimal]:
        """The multipliers at which an entry leaves or the surviving corner moves."""
        finite = sorted({-f for f in self.falling if f != -INFINITY})
        return [t / self.beta for t in finite + self.corner_moves()]

    def corner_moves(self) -> list[Decimal]:
        """The thresholds beyond max c/w at which the surviving entry moves to a smaller weight."""
        moves: list[Decimal] = []
        if self.falling[0] == -INFINITY:
            return moves
        survivor = self.tied(-self.falling[0])[0][0]
        while True:
            here, weight = self.entries[survivor], self.weights[survivor]
            later = [
                ((here - c) / (weight - w), w, -c, j)
                for j, (c, w) in enumerate(zip(self.entries, self.weights, strict=True))
                if w < weight
            ]
            if not later:
                return moves
            survivor = min(later)[3]
            moves.append(min(later)[0])


def curve(vector: Numbers, weights: Numbers | None) -> Curve:
    entries = [abs(c) for c in decimals(vector)]
    weight = relative(weights, len(entries))
    norm = euclid(weight)
    quotient = [INFINITY if w == 0 else c / w for c, w in zip(entries, weight, strict=True)]
    order = sorted((j for j, c in enumerate(entries) if c > 0), key=lambda j: -quotient[j])
    sums = [(ZERO, ZERO, ZERO)]
    for j in order:
        w, c, (ww, wc, cc) = weight[j], entries[j], sums[-1]
        sums.append((ww + w * w, wc + w * c, cc + c * c))
    falling = [-quotient[j] for j in order]
    return Curve(entries, weight, norm, ONE / (norm - min(weight)), order, falling, sums)


@dataclass(frozen=True)
class Problem:
    curves: list[Curve]
    budget: Decimal

    def excess(self, mu: Decimal) -> tuple[Decimal, Decimal]:
        """g(mu): its lowest and its highest value among the best x."""
        ranges = [(c.beta, *c.range(mu * c.beta)) for c in self.curves]
        low = sum((beta * low for beta, low, _ in ranges), -self.budget)
        return low, sum((beta * high for beta, _, high in ranges), -self.budget)

    def dual(self, mu: Decimal) -> Decimal:
        return sum((c.value(mu * c.beta) for c in self.curves), mu * self.budget)


def solve(
    vectors: Sequence[Numbers], target: float, weights: Sequence[Numbers] | None = None
) -> Truth:
    """Project `vectors` to the average Hoyer measure `target`, exactly."""
    with decimal.localcontext(PRECISE):
        pairs = list(zip(vectors, weights or [None] * len(vectors), strict=True))
        counted = [i for i, (v, _) in enumerate(pairs) if len(v) > 1]
        nonzero = [i for i in counted if np.any(pairs[i][0])]
        curves = [curve(*pairs[i]) for i in nonzero]
        zeros = len(counted) - len(nonzero)
        wanted = len(counted) * Decimal(float(target)) - zeros
        problem = Problem(curves, sum((c.norm * c.beta for c in curves), ZERO) - wanted)
        if problem.excess(ZERO)[0] <= SAME:
            xs = [lowest(c, ZERO) for c in curves]
            return report(vectors, nonzero, problem, xs, (ZERO, ZERO), "feasible", zeros)
        multipliers = optimal_multipliers(problem)
        xs, kind = fill(problem, multipliers[0])
        return report(vectors, nonzero, problem, xs, multipliers, kind, zeros)


def optimal_multipliers(problem: Problem) -> tuple[Decimal, Decimal]:
    """The interval of multipliers at which g contains zero."""
    points = [ZERO, *sorted({b for c in problem.curves for b in c.breakpoints()})]
    first = bisect.bisect_left(points, True, key=lambda mu: problem.excess(mu)[0] <= SAME)
    if problem.excess(points[first])[1] < -SAME:
        root = smooth_root(problem, points[first - 1], points[first])
        return root, root
    after = bisect.bisect_left(points, True, lo=first, key=lambda mu: problem.excess(mu)[1] < -SAME)
    if after == len(points) and problem.excess(points[-1])[0] >= -SAME:
        return points[first], INFINITY
    return points[first], points[after - 1]


def smooth_root(problem: Problem, left: Decimal, right: Decimal) -> Decimal:
    """The root of g between two neighbouring breakpoints, by false position (Illinois)."""
    above, below = problem.excess(left)[0], problem.excess(right)[1]
    kept = 0
    while right - left > SAME * right:
        mu = (left * below - right * above) / (below - above)
        if left and right > 4 * left:  # orders of magnitude apart: a straight line is no guide
            mu = (left * right).sqrt()
        here = problem.excess(mu)[0]
        if abs(here) <= SAME:
            return mu
        if here > 0:
            left, above, below = mu, here, below / 2 if kept > 0 else below
            kept = 1
        else:
            right, below, above = mu, here, above / 2 if kept < 0 else above
            kept = -1
    return right


def lowest(vector: Curve, t: Decimal) -> list[Decimal]:
    """The best x at threshold t that has the least w.x."""
    entries, weights = vector.entries, vector.weights
    if vector.active(t):
        length = vector.smooth(t)[1]
        return [max(c - t * w, ZERO) / length for c, w in zip(entries, weights, strict=True)]
    return corner(vector, vector.tied(t)[0][0])


def corner(vector: Curve, index: int) -> list[Decimal]:
    return [ONE if j == index else ZERO for j in range(len(vector.entries))]


def fill(problem: Problem, mu: Decimal) -> tuple[list[list[Decimal]], str]:
    """The best x at mu; where g jumps, spend what is left of the budget, first where it is free."""
    curves = problem.curves
    xs = [lowest(c, mu * c.beta) for c in curves]
    slack, kind = -problem.excess(mu)[0], "root"
    loose = [i for i, c in enumerate(curves) if not c.active(mu * c.beta)]
    for i in sorted(loose, key=lambda i: not curves[i].tied(mu * curves[i].beta)[1]):
        vector, t = curves[i], mu * curves[i].beta
        low, high = vector.range(t)
        if high - low <= SAME:
            continue
        wanted = min(high, low + slack / vector.beta)
        members, mixed = vector.tied(t)
        if mixed:
            kind, xs[i] = "tie", on_arc(vector, members, wanted)
        elif high - wanted <= SAME:
            kind, xs[i] = "tie", corner(vector, members[-1])
        elif wanted - low > SAME:
            kind, xs[i] = "jump", on_arc(vector, [members[0], members[-1]], wanted)
        slack -= vector.beta * (wanted - low)
    return xs, kind


def on_arc(vector: Curve, members: list[int], wanted: Decimal) -> list[Decimal]:
    """The x with w.x = wanted on the great circle from the first member's corner to w."""
    weights = [w if j in members else ZERO for j, w in enumerate(vector.weights)]
    length = euclid(weights)
    cosine = min(wanted / length, ONE)
    sine = (ONE - cosine * cosine).sqrt()
    start = corner(vector, members[0])
    shadow = weights[members[0]] / length**2
    across = [e - shadow * w for e, w in zip(start, weights, strict=True)]
    width = euclid(across)
    pairs = zip(weights, across, strict=True)
    return [max(cosine * w / length + sine * a / width, ZERO) for w, a in pairs]


def report(
    vectors: Sequence[Numbers],
    nonzero: list[int],
    problem: Problem,
    xs: list[list[Decimal]],
    multipliers: tuple[Decimal, Decimal],
    kind: str,
    zeros: int,
) -> Truth:
    answer = [np.asarray(v, dtype=np.float64).copy() for v in vectors]
    primal, measure = ZERO, Decimal(zeros)
    for i, vector, x in zip(nonzero, problem.curves, xs, strict=True):
        scale = sum((c * e for c, e in zip(vector.entries, x, strict=True)), ZERO)
        inner = sum((w * e for w, e in zip(vector.weights, x, strict=True)), ZERO)
        primal += scale
        # A corner on an entry where c is zero leaves a zero vector, and its measure is one.
        measure += vector.beta * (vector.norm - inner) if scale else ONE
        if kind != "feasible":
            signs = np.where(answer[i] < 0, -1.0, 1.0)
            answer[i] = signs * np.array([float(scale * e) for e in x])
    counted = sum(len(v) > 1 for v in vectors)
    return Truth(
        vectors=answer,
        multipliers=(float(multipliers[0]), float(multipliers[1])),
        primal=float(primal),
        dual=float(problem.dual(multipliers[0])),
        average=float(measure / counted),
        kind=kind,
        unique=kind in ("feasible", "root"),
    )
