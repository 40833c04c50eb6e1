"""The numba kernel: one read of the data to solve, one read and one write to answer.

A small sample tells where the root must be. One scan then sums up what lies above that bracket and
keeps the few entries inside it; from these the sums at every μ of the bracket follow exactly,
without touching the data again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..dual import Point
from ..layout import Block
from . import Kernel, NotFinite, OutOfRange, _loops
from .numba_parts import Columns, Part, Rows, Sums
from .pool import run
from .reference import LARGEST_SQUARE, SMALLEST_SQUARE, ReferenceKernel
from .reference import Part as ReferencePart
from .sampling import sampled_root

SMALL = 3 << 13  # up to so many entries Newton's steps cost less than what would save passes
ATTEMPTS = 6  # brackets to try before falling back on plain passes
NEARBY = 1e-3  # how far, relative to it, the root is expected from the root of a similar problem
CLOSE = 1e-12  # to the level, per vector: nearer is not looked for
STEPS = 12  # of Newton's method on a small problem before the search takes over
WIDEST = 0.05  # a wider bracket, relative to its middle, would keep too many entries


def create(blocks: Sequence[Block]) -> Kernel:
    """The kernel for problems of this kind and size."""
    small = sum(block.values.size for block in blocks) <= SMALL
    if small or any(block.weights is not None for block in blocks):
        return CompiledKernel(blocks)
    return NumbaKernel(blocks)


class CompiledKernel(ReferenceKernel):
    """The reference kernel with its sums compiled, for weights and for small problems."""

    name = "numba"

    def _part(self, block: Block) -> ReferencePart:
        plain = block.weights is None and block.uniform
        return _SmallPart(block) if plain else _WeightedPart(block)

    def begin(self, level: float, start: float | None) -> Sequence[Point]:
        if len(self.parts) == 1 and isinstance(part := self.parts[0], _SmallPart):
            known, evaluated = part.descend(level, start)
            if known:
                self.passes += evaluated
                return known
        return super().begin(level, start)


class _SmallPart(ReferencePart):
    """Vectors in rows; columns are few enough to be copied into rows."""

    def __init__(self, block: Block) -> None:
        self.given = block
        if block.values.ndim == 3:
            rows = np.ascontiguousarray(np.moveaxis(block.values, 1, -1)).reshape(-1, block.length)
            block = Block(rows, None, block.beta, block.top, block.rate)
        super().__init__(block)
        self.s, self.q = np.empty((2, len(self.magnitude)))
        self.top = math.inf  # the largest ‖c‖², once 0 was looked at

    def write(self, mu: float) -> None:
        given = self.given
        if given is self.block:
            return super().write(mu)
        assert given.out is not None
        outer, length, inner = given.values.shape
        self.block.out = np.empty((outer, inner, length), given.out.dtype).reshape(-1, length)
        super().write(mu)
        given.out[...] = np.moveaxis(self.block.out.reshape(outer, inner, length), -1, 1)

    def evaluate(self, mu: float) -> tuple[float, float]:
        return self._newton(mu, 0.0, 1, 0.0)[1:3]

    def descend(self, level: float, start: float | None) -> tuple[list[Point], int]:
        """The points at 0 and near the root, and how many there were; none where it is not safe."""
        mu, last, last_slope, total, slope, outside, points, _ = self._newton(
            0.0, 0.0 if start is None else start, STEPS, level
        )
        if outside:
            return [], 0
        zero = Point(0.0, total, slope)
        return [zero] if mu == 0.0 else [zero, Point(mu, last, last_slope)], points

    def _newton(
        self, mu: float, start: float, most: int, level: float
    ) -> tuple[float, float, float, float, float, int, int, float]:
        block = self.block
        found: tuple[float, float, float, float, float, int, int, float] = _loops.newton(
            self.magnitude, mu, start, most, level, CLOSE * len(self.s), SMALLEST_SQUARE,
            LARGEST_SQUARE, block.rate, block.beta, self.s, self.q, self.excess,
        )  # fmt: skip
        self.mu, self.threshold = found[0], block.threshold(found[0])
        if mu == 0.0:
            self.top = found[-1]
        return found

    def longest(self, mu: float) -> float:
        return math.sqrt(self.top)  # no answer is longer than its vector, and that is known


class _WeightedPart(ReferencePart):
    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.s, self.q, self.n = np.empty((3, *block.grid))
        shape = (*block.values.shape, 1)[:3]
        grid = (shape[0], shape[2])
        weights = 1.0 if block.weights is None else block.weights
        self.cubes = (
            self.magnitude.reshape(shape),
            np.ascontiguousarray(np.broadcast_to(weights, block.values.shape)).reshape(shape),
        )
        self.sums = tuple(x.reshape(grid) for x in (self.s, self.q, self.n))
        self.out = self.excess.reshape(shape)

    def sum_up(self, mu: float) -> None:
        self.mu, self.threshold = mu, self.block.threshold(mu)
        threshold = np.ascontiguousarray(np.broadcast_to(self.threshold, self.block.grid))
        _loops.sums_of_weighted(
            *self.cubes, threshold.reshape(self.sums[0].shape), *self.sums, self.out
        )


class NumbaKernel:
    """See :class:`groupsparse.kernels.Kernel`."""

    name = "numba"

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.parts: list[Part] = [
            Columns(block) if block.values.ndim == 3 and block.uniform else Rows(block)
            for block in blocks
        ]
        self.size = sum(part.size for part in self.parts)
        self.low = self.high = -1.0  # the bracket that the parts can answer for
        self.summed: list[Sums] = []
        self.summed_at = -1.0
        self.asked = -1.0  # the last μ that needed a pass
        self.passes = 0

    def begin(self, level: float, start: float | None) -> Sequence[Point]:
        guess = self._guess(level) if start is None else (start, NEARBY * start)
        if guess is None or not 0.0 < guess[0] < math.inf:
            return [self._point(0.0)]
        mu, reach = guess
        known: list[Point] = []
        for _ in range(ATTEMPTS):
            if reach > WIDEST * mu:
                reach = 0.0  # a plain pass, to come nearer
            kept = self._scan(mu - reach, mu + reach)
            known.append(self._point(self.high))
            if not kept:
                break
            if self.low < self.high:
                if self._holds_root(known[-1], level):
                    break
                known.append(self._point(self.low))
                if known[-2].total <= level <= known[-1].total:
                    break
            here = min(known[-2:], key=lambda point: abs(point.total - level))
            step = (level - here.total) / here.slope if here.slope < 0.0 else math.inf
            mu = here.mu + step
            if not 0.0 < mu < math.inf:
                break
            # Newton's step from a relative distance ε ends within some ε² of the root.
            distance = abs(step) / mu
            near = min(10.0 * distance * distance, 0.02) + 1e-5
            reach = mu * near if distance < 0.2 else math.inf
        return known

    def _guess(self, level: float) -> tuple[float, float] | None:
        """Where the root should be, and how far around; None where 0 has to be looked at first."""
        if self.size <= SMALL or not level > 0.0 or any(part.step for part in self.parts):
            return None
        return sampled_root(self.parts, level)

    def _holds_root(self, point: Point, level: float) -> bool:
        """Whether the root lies in the present bracket, so that no other pass is needed."""
        step = (level - point.total) / point.slope if point.slope < 0.0 else math.inf
        return self.low < point.mu + 1.5 * step < self.high

    def evaluate(self, mu: float) -> tuple[float, float]:
        sums = self._sums(mu)
        return sum(found[0] for found in sums), sum(found[1] for found in sums)

    def upper(self) -> float:
        self.passes += 1
        return max(part.upper() for part in self.parts) * (1.0 + 2.0**-50)

    def objective(self, mu: float) -> tuple[float, float]:
        found = [(primal, value) for _, _, primal, value, _, _ in self._sums(mu)]
        found += [part.corner_objective(mu) for part in self.parts]
        return sum(primal for primal, _ in found), sum(value for _, value in found)

    def longest(self, mu: float) -> float:
        return max(length for _, _, _, _, length, _ in self._sums(mu))

    def write(self, mu: float) -> None:
        self._sums(mu)
        self.passes += 1
        corners = [part.corners() for part in self.parts]  # before they are overwritten
        run([task for part in self.parts for task in part.write_tasks(mu)])
        for part, found in zip(self.parts, corners, strict=True):
            part.place(*found)

    def _point(self, mu: float) -> Point:
        return Point(mu, *self.evaluate(mu))

    def _sums(self, mu: float) -> list[Sums]:
        """The sums at μ; the parts keep the factors that belong to them for the write."""
        if mu != self.summed_at:
            if not self.low <= mu <= self.high:
                self._scan_around(mu)
            tasks = [task for part in self.parts for task in part.sum_tasks(mu, self.high)]
            self.summed, self.summed_at = run(tasks), mu
            if any(faint for *_, faint in self.summed):
                raise OutOfRange
        return self.summed

    def _scan_around(self, mu: float) -> None:
        """A plain pass, but once the steps are small also the entries that the next will need."""
        reach = 0.25 * abs(mu - self.asked)
        self.asked = mu
        if not (0.0 < reach < 0.01 * mu and self._scan(mu - reach, mu + reach)):
            self._scan(mu, mu)

    def _scan(self, low: float, high: float) -> bool:
        """Sum up above ``high`` and keep the entries above ``low``; False if they are too many."""
        self.passes += 1
        ends = run([task for part in self.parts for task in part.scan_tasks(low, high)])
        kept = all(end < capacity for end, capacity in ends)  # a full list may have lost its last
        for part in self.parts:
            part.settle(kept)
        self.low, self.high, self.summed_at = (low if kept else high), high, -1.0
        if not all(part.sound() for part in self.parts):
            raise OutOfRange if all(part.finite() for part in self.parts) else NotFinite
        return kept
