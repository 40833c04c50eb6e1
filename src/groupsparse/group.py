"""One group of vectors: layout → dual ⇄ kernel → rebuild → certificate, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import kernels, ties
from .dual import Point, Root, find_root
from .errors import InvalidInput
from .layout import Block, Item
from .result import Status
from .sparsity import hoyer

# Rounding the answer of an earlier projection to its dtype moves its average by less than this;
# projecting it again must give it back bit for bit.
SLACK = {8: 1e-11, 4: 5e-7, 2: 5e-7}
TOLERANCE = 1e-12


class Certificate(NamedTuple):
    """The certificate of one group, but for the measure of what is returned."""

    multiplier: float
    status: Status
    iterations: int
    passes: int
    kernel: str
    primal: float
    dual: float


class Group:
    """Vectors that share one target and one multiplier.

    ``solve`` finds the multiplier and changes nothing; ``write`` then fills the items' targets. In
    between other groups can be solved, so that of a whole network everything is changed or nothing.
    """

    def __init__(self, items: Sequence[Item], target: float, kernel: str | None) -> None:
        self.items = items
        self.target = target
        self.measured = [item for item in items if item.block is not None]
        blocks = self.blocks
        if not blocks:
            raise InvalidInput(
                f"{items[0].name} holds only vectors of length 1, which have no Hoyer measure; "
                "expected a vector of length 2 or more"
            )
        self.count = sum(block.vectors for block in blocks)
        self.level = sum(block.top for block in blocks) - self.count * target
        self.kernel = kernels.create(kernel, blocks)
        self.unit = 1.0  # the multiplier's, where the vectors had to be rescaled
        self.root = Root(0.0, 0, met=True)
        self.asked: tuple[float | None, float | None] = None, None  # tolerance and start
        self.steps = 0  # towards the root that the kernel made by itself
        for item in items:
            if item.block is None:  # no kernel will see these
                item.complain_if_not_finite()

    def solve(self, tol: float | None, start: float | None) -> None:
        """Find the multiplier."""
        self.asked = tol, start
        try:
            self._solve(tol, start)
        except kernels.OutOfRange:
            self._rescale()
            self._solve(tol, start)

    def _solve(self, tol: float | None, start: float | None) -> None:
        known = self._begin(start)
        self.steps = self.kernel.passes - 1  # each pass but the first look was a step to the root
        tolerance = TOLERANCE if tol is None else tol
        slack = max(tolerance, max(SLACK[item.array.itemsize] for item in self.items))
        if self.target == 1.0:
            at_zero = [point.total for point in known if point.mu == 0.0]
            total = at_zero[0] if at_zero else self.kernel.evaluate(0.0)[0]
            # Only where nothing can change any more is every vector exactly 1-sparse.
            enough = total <= self.level + slack * self.count
            self.root = Root(0.0 if enough else self.kernel.upper(), 0, met=True)
            return
        self.root = find_root(
            self.kernel.evaluate,
            self.level,
            tolerance * self.count,
            self.kernel.upper,
            known=known,
            start=None if start is None else start / self.unit,
            slack=slack * self.count,
        )

    def _begin(self, start: float | None) -> Sequence[Point]:
        try:
            return self.kernel.begin(self.level, None if start is None else start / self.unit)
        except kernels.NotFinite:
            for item in self.items:
                item.complain_if_not_finite()
            raise

    def _rescale(self) -> None:
        exponents = [item.exponents() for item in self.measured]
        middle = (max(e[1] for e in exponents) + min(e[0] for e in exponents)) // 2
        for item in self.measured:
            item.rescale(middle)
        self.unit = float(np.ldexp(1.0, middle))
        self.kernel = kernels.create(self.kernel.name, self.blocks)

    @property
    def blocks(self) -> list[Block]:
        return [item.block for item in self.measured if item.block is not None]

    def write(self, *, certify: bool) -> Certificate:
        """Write the answer into the items' targets, which may be the input itself."""
        try:
            return self._write(certify=certify)
        except kernels.OutOfRange:  # sums beside a tie, that no step to the root had asked for
            self._rescale()
            self._solve(*self.asked)
            return self._write(certify=certify)

    def _write(self, *, certify: bool) -> Certificate:
        mu, jump = self.root.mu, self.root.jump
        primal = dual = 0.0
        if certify:
            primal, value = self.kernel.objective(mu)
            dual = (value + mu * self.level) * self.unit
        if mu == 0.0:
            status = Status.FEASIBLE
            for item in self.items:
                item.copy()
        else:
            status = Status.CONVERGED if self.root.met else Status.STALLED
            total = 0.0 if jump is None else self.kernel.evaluate(mu)[0]
            # The largest entries grow in a projection, and must not grow out of a small dtype.
            limit = min(item.largest for item in self.measured)
            beside = self._rescaled or (limit < 1e300 and self._longest() > 0.5 * limit)
            for item in self.measured:
                item.open_target(beside=beside, keep=jump is not None)
            self.kernel.write(mu)
            if jump is not None:
                hosts = [item.on_host() for item in self.measured]
                status, gain = ties.resolve(hosts, *jump, self.level, total)
                primal += gain
            for item in self.measured:
                item.check_range()
            for item in self.items:
                item.close_target()
        return Certificate(
            mu * self.unit,
            status,
            self.steps + self.root.iterations,
            self.kernel.passes,
            self.kernel.name,
            primal * self.unit,
            dual,
        )

    @property
    def _rescaled(self) -> bool:
        return any(item.exponent is not None for item in self.measured)

    def _longest(self) -> float:
        sides = (self.root.mu,) if self.root.jump is None else self.root.jump
        return max(self.kernel.longest(mu) for mu in sides)

    def average(self) -> float:
        """The average Hoyer measure of what is in the targets now."""
        if not self._rescaled:
            answers = [item.answer() for item in self.measured]
            try:
                total, _ = kernels.create(self.kernel.name, answers).evaluate(0.0)
                return (sum(block.top for block in answers) - total) / self.count
            except kernels.OutOfRange:
                pass  # vectors so faint that the root was found without ever looking into them
        measures = [
            np.ravel(np.asarray(hoyer(item.target, axis=item.axes, weights=item.weights)))
            for item in self.measured
        ]
        return float(np.concatenate(measures).mean())
