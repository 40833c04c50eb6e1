"""One group of vectors: layout → dual ⇄ kernel → rebuild → certificate, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import kernels, ties
from .dual import Point, Root, find_root
from .errors import InvalidInput
from .layout import Item, complain_if_not_finite
from .result import Status
from .sparsity import hoyer

# Rounding the answer of an earlier projection to its dtype moves its average by less than this;
# projecting it again must give it back bit for bit.
SLACK = {8: 1e-11, 4: 5e-7, 2: 5e-7}
TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Certificate:
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
        blocks = [item.block for item in self.measured if item.block is not None]
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

    def solve(self, tol: float | None, start: float | None) -> None:
        """Find the multiplier."""
        try:
            self._solve(tol, start)
        except kernels.OutOfRange:
            self._rescale()
            self._solve(tol, start)

    def _solve(self, tol: float | None, start: float | None) -> None:
        known = self._begin(start)
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
                complain_if_not_finite(item)
            raise

    def _rescale(self) -> None:
        exponents = []
        for item in self.measured:
            assert item.block is not None
            largest = np.abs(item.block.values).max(axis=1)
            exponents.append(np.where(largest > 0.0, np.frexp(largest)[1], 0))
        middle = (int(max(e.max() for e in exponents)) + int(min(e.min() for e in exponents))) // 2
        for item, exponent in zip(self.measured, exponents, strict=True):
            item.rescale(exponent, middle)
        self.unit = float(np.ldexp(1.0, middle))
        blocks = [item.block for item in self.measured if item.block is not None]
        self.kernel = kernels.create(self.kernel.name, blocks)

    def write(self, *, certify: bool) -> Certificate:
        """Write the answer into the items' targets, which may be the input itself."""
        mu, jump = self.root.mu, self.root.jump
        primal = dual = 0.0
        if certify:
            primal, value = self.kernel.objective(mu)
            dual = (value + mu * self.level) * self.unit
        if mu == 0.0:
            status = Status.FEASIBLE
            for item in self.items:
                if item.target is not item.array:
                    np.copyto(item.target, item.array)
        else:
            status = Status.CONVERGED if self.root.met else Status.STALLED
            total = 0.0 if jump is None else self.kernel.evaluate(mu)[0]
            for item in self.measured:
                item.open_target()
                if jump is not None:
                    item.keep_values()
            self.kernel.write(mu)
            if jump is not None:
                blocks = [item.block for item in self.measured if item.block is not None]
                status, gain = ties.resolve(blocks, *jump, self.level, total)
                primal += gain
            for item in self.items:
                if item.block is not None:
                    item.close_target()
                elif item.target is not item.array:
                    np.copyto(item.target, item.array)
        return Certificate(
            mu * self.unit,
            status,
            self.root.iterations,
            self.kernel.passes,
            self.kernel.name,
            primal * self.unit,
            dual,
        )

    def average(self) -> float:
        """The average Hoyer measure of what is in the targets now."""
        if any(item.exponent is not None for item in self.measured):
            measures = [
                np.ravel(hoyer(item.target, axis=item.axes, weights=item.weights))
                for item in self.measured
            ]
            return float(np.concatenate(measures).mean())
        answers = [item.answer() for item in self.measured]
        total, _ = kernels.create(self.kernel.name, answers).evaluate(0.0)
        return (sum(block.top for block in answers) - total) / self.count
