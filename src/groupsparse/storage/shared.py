"""One target and one multiplier for tensors that need not fit into memory together.

The dual solver sees only ``evaluate(mu)``; here that is a pass over the files, in which every
tensor is read, summed up and forgotten. A sample of the vectors says where to start, so that
a handful of passes is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import kernels, ties
from ..dual import Point, Root, find_root
from ..errors import InvalidInput
from ..group import SLACK, Group
from ..layout import Block, Item, arrange
from ..result import Status

R = TypeVar("R")
SAMPLED = 1 << 20  # entries of the sample, about
# How far the average may end from the target, by the size of an entry. Sums of float32 are not
# smooth enough for less, and every further step would be a pass over the files.
TOLERANCE = {8: 1e-12, 4: 1e-7, 2: 1e-7}


@dataclass(frozen=True)
class Part:
    """A tensor of the group: where its vectors lie, and how to get its values."""

    name: str
    axes: tuple[int, ...]
    size: int
    read: Callable[[], NDArray[Any]]


@dataclass
class _Tied:
    """Vectors of one part that jump at the root, with their answers."""

    index: tuple[NDArray[np.intp], ...]
    block: Block


@dataclass
class SharedProjection:
    """The projection of all parts as one group; nothing is held but one part at a time.

    Vectors that are tied at the root are the exception: they have to be looked at together.

    Examples
    --------
    >>> import numpy as np
    >>> import groupsparse as gs
    >>> from groupsparse.storage.shared import Part, SharedProjection
    >>> layers = {"a": np.random.default_rng(0).normal(size=(8, 30)), "b": np.ones((4, 9))}
    >>> parts = [Part(name, (1,), x.size, x.copy) for name, x in layers.items()]
    >>> shared = SharedProjection(parts, 0.7)
    >>> projected = [row for part in parts for row in shared.project(part, part.read())]
    >>> round(gs.average_hoyer(projected), 10)
    0.7
    """

    parts: Sequence[Part]
    target: float
    status: Status = field(default=Status.FEASIBLE, init=False)
    passes: int = field(default=0, init=False)
    count: int = field(default=0, init=False)  # of vectors

    def __post_init__(self) -> None:
        self.middle: int | None = None  # the power of two, where vectors had to be rescaled
        self.tied: dict[str, _Tied | None] = {}
        try:
            self.root = self._solve()
        except kernels.OutOfRange:
            exponents = self._over(lambda item, _: item.exponents())
            self.middle = (max(e[1] for e in exponents) + min(e[0] for e in exponents)) // 2
            self.root = self._solve()
        if self.root.mu == 0.0:
            return
        self.status = Status.CONVERGED if self.root.met else Status.STALLED
        if self.root.jump is not None:
            self._resolve(*self.root.jump)

    @property
    def multiplier(self) -> float:
        """The multiplier μ that all parts share."""
        return self.root.mu if self.middle is None else math.ldexp(self.root.mu, self.middle)

    def project(self, part: Part, values: NDArray[Any]) -> NDArray[Any]:
        """The answer for one part, written over its values."""
        item = self._item(part, values)
        block = item.block
        if self.root.mu == 0.0 or block is None:
            return values
        item.target = values
        kernel = kernels.create(None, [block])
        limit = item.largest
        narrow = limit < 1e300 and kernel.longest(self.root.mu) > 0.5 * limit
        item.open_target(beside=self.middle is not None or narrow, keep=False)
        kernel.write(self.root.mu)
        if tied := self.tied.get(part.name):
            assert block.out is not None
            block.out[_where(tied.index)] = tied.block.out
        item.check_range()
        item.close_target()
        return values

    def _item(self, part: Part, values: NDArray[Any]) -> Item:
        item = arrange(values, part.axes, None, part.name)
        if item.block is not None and self.middle is not None:
            item.exponents()
            item.rescale(self.middle)
        return item

    def _over(self, look: Callable[[Item, Block], R]) -> list[R]:
        """What ``look`` finds in the parts that have vectors to count: one pass."""
        self.passes += 1
        return [found for part in self.parts for found in self._look(part, look)]

    def _look(self, part: Part, look: Callable[[Item, Block], R]) -> list[R]:
        # A function of its own, so that a part is forgotten before the next one is read.
        item = self._item(part, part.read())
        return [] if item.block is None else [look(item, item.block)]

    def _evaluate(self, mu: float) -> tuple[float, float]:
        pairs = self._over(lambda _, block: kernels.create(None, [block]).evaluate(mu))
        return sum(total for total, _ in pairs), sum(slope for _, slope in pairs)

    def _upper(self) -> float:
        return max(self._over(lambda _, block: kernels.create(None, [block]).upper()))

    def _solve(self) -> Root:
        """Find the multiplier. The first pass also looks whether all is finite and in range."""
        # The same share of the vectors of every part, so that the sample is a small copy of all.
        every = max(1, sum(part.size for part in self.parts) // SAMPLED)
        found = self._over(lambda item, block: _First.of(item, block, every))
        self.count = sum(first.count for first in found)
        if not self.count:
            raise InvalidInput(
                f"{self.parts[0].name} and the like hold only vectors of length 1, which have no "
                "Hoyer measure; expected a vector of length 2 or more"
            )
        self.level = sum(first.top for first in found) - self.count * self.target
        total, slope = sum(f.point.total for f in found), sum(f.point.slope for f in found)
        slack = max(SLACK[first.stored] for first in found)
        enough = total <= self.level + slack * self.count
        if self.target == 1.0:
            return Root(0.0 if enough else self._upper(), 0, met=True)
        return find_root(
            self._evaluate,
            self.level,
            max(TOLERANCE[first.itemsize] for first in found) * self.count,
            self._upper,
            known=[Point(0.0, total, slope)],
            start=self._guess([f.sample for f in found])
            if total > self.level + slack * self.count
            else None,
            slack=slack * self.count,
        )

    def _guess(self, sample: list[Item]) -> float | None:
        if self.middle is not None:
            return None
        group = Group(sample, self.target, None)
        group.solve(1e-3, None)
        return group.root.mu or None

    def _resolve(self, lo: float, hi: float) -> None:
        """Gather the vectors that jump between lo and hi, and let them meet the target exactly."""
        total, _ = self._evaluate(hi)
        self.passes += 1
        for part in self.parts:
            self.tied |= dict(self._look(part, lambda item, block: _tied(item, block, lo, hi)))
        blocks = [tied.block for tied in self.tied.values() if tied is not None]
        self.status, _ = ties.resolve(blocks, lo, hi, self.level, total)


def _where(index: tuple[NDArray[np.intp], ...]) -> tuple[Any, ...]:
    return (index[0],) if len(index) == 1 else (index[0], slice(None), index[1])


def _some(block: Block, index: tuple[NDArray[np.intp], ...]) -> Block:
    """Some of the vectors of a block, as a block of its own with room for the answer."""
    values = block.values[_where(index)]
    rate, beta = (
        x if isinstance(x, float) else np.broadcast_to(x, block.grid)[index]
        for x in (block.rate, block.beta)
    )
    top = block.top / block.vectors * len(values)
    return Block(values, None, beta, top, rate, np.empty_like(values))


def _tied(item: Item, block: Block, lo: float, hi: float) -> tuple[str, _Tied | None]:
    found = [sides.index for sides in ties.jumping([block], lo, hi)]
    if not found:
        return item.name, None
    index = tuple(np.concatenate(along) for along in zip(*found, strict=True))
    return item.name, _Tied(index, _some(block, index))


@dataclass(frozen=True)
class _First:
    """What the first pass finds out about a part."""

    count: int
    top: float
    point: Point
    itemsize: int  # of what is computed with
    stored: int  # of what is in the file
    sample: Item

    @classmethod
    def of(cls, item: Item, block: Block, every: int) -> _First:
        try:
            point = kernels.create(None, [block]).begin(0.0, None)[0]
        except kernels.NotFinite:
            item.complain_if_not_finite()
            raise
        flat = np.arange(0, block.vectors, every)
        some = block.values[_where(np.unravel_index(flat, block.grid))]
        sample = arrange(np.ascontiguousarray(some), -1, None, "sample")
        sizes = block.values.itemsize, item.array.itemsize
        return cls(block.vectors, block.top, point, *sizes, sample)
