"""The blocks of a group as the compiled loops want them: vectors in rows, or in columns."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layout import BIG, Block
from . import _loops, _loops_columns
from .pool import run

Array = NDArray[np.float64]
Corners = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[Any]]
Sums = tuple[float, float, float, float, float, int]
PIECE = 1 << 16  # longer vectors are summed up piece by piece
TASK = 1 << 18  # entries that are worth handing to another core
TASKS = 8  # fixed, so that results do not depend on the number of cores
ROOM = 32  # one entry in so many can be kept from a scan
# Squares are summed in the data's own precision and must neither vanish nor overflow.
SQUARES = {4: (1e-30, 1e30), 8: (1e-200, 1e200)}


class Part:
    """One block, its sums at the upper end of a bracket, and the entries inside the bracket."""

    def __init__(self, block: Block, values: NDArray[Any], vectors: int, pieces: int) -> None:
        self.block = block
        self.values = values
        self.size = values.size
        self.vectors, self.pieces = vectors, pieces
        self.dtype = values.dtype
        self.one = self.dtype.type(1)
        self.rate = np.atleast_1d(np.asarray(block.rate, dtype=np.float64)).ravel()
        self.beta = np.atleast_1d(np.asarray(block.beta, dtype=np.float64)).ravel()
        self.step = int(self.rate.size > 1)
        if self.beta.size != self.rate.size:
            self.beta = np.full(self.rate.size, self.beta[0])
        self.factor = np.empty(vectors, self.dtype)
        self.offset = np.zeros(vectors * pieces, np.int64)
        self.held = np.zeros(vectors * pieces, np.int32)
        self.s, self.q = np.empty((2, vectors * pieces))
        self.count = np.empty(vectors * pieces, np.float32)
        self.band = np.empty(0, self.dtype)

    def ranges(self, count: int, work: int = 0) -> list[tuple[int, int]]:
        """``count`` things in as many ranges as the work, by default the whole data, is worth."""
        tasks = max(1, min(TASKS, (work or self.size) // TASK, count))
        return [(count * i // tasks, count * (i + 1) // tasks) for i in range(tasks)]

    def band_room(self, banded: bool, tasks: int) -> int:
        """Make room for entries inside the bracket; returns what each task may fill."""
        room = max(64, self.size // ROOM // tasks) if banded else 1
        if self.band.size < room * tasks:
            self.band = np.empty(room * tasks, self.dtype)
        return room

    def thresholds(self, low: float, high: float) -> tuple[NDArray[Any], ...]:
        """Per vector: the low one, and the high one as a sum of two numbers of the data's dtype."""
        with np.errstate(over="ignore"):
            exact, bottom = (np.minimum(mu * self.rate, BIG) for mu in (high, low))
        head = exact.astype(self.dtype)
        tail = (exact - head).astype(self.dtype)
        if low == high:  # no entry is in the bracket
            return np.full_like(head, np.inf), head, tail
        # Rounded down: an entry too many inside the bracket does no harm, unless it is a zero.
        lowest = np.nextafter(bottom.astype(self.dtype), self.dtype.type(-np.inf))
        return np.maximum(lowest, self.dtype.type(0)), head, tail

    def sum_tasks(self, mu: float, high: float) -> list[Callable[[], Sums]]:
        return [
            partial(
                _loops.sums_of_band, first, last, self.pieces, mu, high, self.rate, self.beta,
                self.step, self.s, self.q, self.count, self.band, self.offset, self.held,
                self.factor,
            )
            for first, last in self.ranges(self.vectors, self.vectors + self.band.size // 2)
        ]  # fmt: skip

    def sound(self) -> bool:
        """Whether all sums are finite and their squares in range."""
        smallest, largest = SQUARES[self.dtype.itemsize]
        if not math.isfinite(self.s.sum()) or not self.q.max() < largest:
            return False
        return not ((self.count > 0.0) & (self.q < smallest)).any()

    def finite(self) -> bool:
        return all(np.isfinite(line).all() for line in self.values)

    def upper(self) -> float:
        low, high = self.block.values.min(axis=1), self.block.values.max(axis=1)
        largest = np.maximum(high, -low).astype(np.float64)
        return float((largest / self.block.rate).max())

    def corners(self) -> Corners:
        """The vectors of which nothing is left, where their largest entry is, and that entry."""
        vectors = np.flatnonzero(self.factor == 0.0)
        at = np.empty(vectors.size, np.intp)
        ranges = self.ranges(vectors.size, vectors.size * self.block.length)
        run([partial(self.find_largest, vectors[i:j], at[i:j]) for i, j in ranges])
        return vectors, at, self.entries(vectors, at)

    def corner_objective(self, mu: float) -> tuple[float, float]:
        vectors, _, value = self.corners()
        if vectors.size == 0:
            return 0.0, 0.0
        every = vectors * self.step
        primal = np.abs(value).astype(np.float64) * (self.beta[every] / self.rate[every])
        return float(primal.sum()), float((primal - mu * self.beta[every]).sum())

    def find_largest(self, vectors: NDArray[np.intp], at: NDArray[np.intp]) -> None:
        """Where the largest entry of each of these vectors is."""
        raise AssertionError

    def entries(self, vectors: NDArray[np.intp], at: NDArray[np.intp]) -> NDArray[Any]:
        """One entry of each of these vectors."""
        raise AssertionError

    def place(self, vectors: NDArray[np.intp], at: NDArray[np.intp], value: NDArray[Any]) -> None:
        """Write the one entry of each of these vectors."""
        raise AssertionError

    def scan_tasks(self, low: float, high: float) -> list[Callable[[], tuple[int, int]]]:
        raise AssertionError

    def settle(self, kept: bool) -> None:
        raise AssertionError

    def write_tasks(self, mu: float) -> list[Callable[[], None]]:
        raise AssertionError

    def sample(self, budget: int, least: int) -> NDArray[Any]:
        """About so many entries, laid out as the part's: some of the vectors, or some of each.

        Where there is a choice, no fewer than ``least`` of one vector.
        """
        raise AssertionError


class Rows(Part):
    """Vectors that lie contiguously, the next one ``pitch`` entries further on."""

    def __init__(self, block: Block) -> None:
        values = block.values
        self.given = values
        if values.ndim == 3:  # rescaled columns: every vector has its own threshold rate
            values = np.ascontiguousarray(np.moveaxis(values, 1, -1)).reshape(-1, block.length)
        length = values.shape[1]
        self.piece = min(length, PIECE)
        super().__init__(block, values, len(values), -(-length // PIECE))
        self.flat, self.pitch = _flat(values)

    def scan_tasks(self, low: float, high: float) -> list[Callable[[], tuple[int, int]]]:
        lowest, head, tail = self.thresholds(low, high)
        ranges = self.ranges(self.vectors * self.pieces)
        room = self.band_room(low < high, len(ranges))
        return [
            partial(
                self._scan, first, last, lowest, head, tail, i * room, (i + 1) * room
            )
            for i, (first, last) in enumerate(ranges)
        ]  # fmt: skip

    def _scan(
        self,
        first: int,
        last: int,
        lowest: NDArray[Any],
        head: NDArray[Any],
        tail: NDArray[Any],
        begin: int,
        end: int,
    ) -> tuple[int, int]:
        found = _loops.scan_rows(
            self.flat, self.one, self.pitch, self.values.shape[1], self.piece, self.pieces, first,
            last, lowest, head, tail, self.step, self.s, self.q, self.count, self.band,
            self.offset, self.held, begin, end,
        )  # fmt: skip
        return found, end

    def settle(self, kept: bool) -> None:
        if not kept:
            self.held[:] = 0

    def write_tasks(self, mu: float) -> list[Callable[[], None]]:
        _, head, tail = self.thresholds(mu, mu)
        out = self.block.out
        assert out is not None
        if self.given.ndim == 3:
            out = np.empty_like(self.values)
        self.written = out
        flat, pitch = _flat(out)
        return [
            partial(
                _loops.write_rows, self.flat, flat, self.one, self.pitch, pitch,
                self.values.shape[1], self.piece, self.pieces, first, last, head, tail, self.step,
                self.factor,
            )
            for first, last in self.ranges(self.vectors * self.pieces)
        ]  # fmt: skip

    def find_largest(self, vectors: NDArray[np.intp], at: NDArray[np.intp]) -> None:
        _loops.largest_of_rows(self.flat, self.one, self.pitch, self.block.length, vectors, at)

    def entries(self, vectors: NDArray[np.intp], at: NDArray[np.intp]) -> NDArray[Any]:
        found: NDArray[Any] = self.values[vectors, at]
        return found

    def place(self, vectors: NDArray[np.intp], at: NDArray[np.intp], value: NDArray[Any]) -> None:
        self.written[vectors, at] = value
        out = self.block.out
        if self.given.ndim == 3 and out is not None:
            shape = (out.shape[0], out.shape[2], out.shape[1])
            out[...] = np.moveaxis(self.written.reshape(shape), -1, 1)

    def sample(self, budget: int, least: int) -> NDArray[Any]:
        vectors, length = self.values.shape
        rows = min(vectors, max(8, budget // length), max(1, 4 * budget // least))
        some = self.values[:: max(1, vectors // rows)]
        return thinned(some, max(budget // len(some), least))


class Columns(Part):
    """Vectors that lie across memory, next to each other: ``values[a, :, b]``."""

    def __init__(self, block: Block) -> None:
        super().__init__(block, block.values, block.vectors, 1)
        self.areas, slots = self._areas()
        # Areas with other lines of the same vectors need sums of their own, to be added up later.
        self.sums = np.empty((3, slots, self.vectors)) if slots > 1 else None
        self.owner = np.empty(0, np.int32)
        self.filled: list[tuple[int, int]] = []
        self.cube = _writeable(block.values)

    def _areas(self) -> tuple[list[tuple[int, int, int, int, int]], int]:
        """(a, top, bottom, left, right) of the areas to share out, and how many share columns."""
        outer, length, width = self.values.shape
        tasks = max(1, min(TASKS, self.size // TASK))
        if outer == 1 and length >= 8 * tasks and width * tasks * 16 <= length * width:
            cuts = [length * i // tasks for i in range(tasks + 1)]
            return [(0, i, j, 0, width) for i, j in pairwise(cuts)], tasks
        parts = 1 if outer >= tasks else min(tasks, max(1, width // 64))
        cuts = [width * i // parts for i in range(parts + 1)]
        return [(a, 0, length, i, j) for a in range(outer) for i, j in pairwise(cuts)], 1

    def scan_tasks(self, low: float, high: float) -> list[Callable[[], tuple[int, int]]]:
        bounds = tuple(bound[0] for bound in self.thresholds(low, high))
        ranges = self.ranges(len(self.areas))
        room = self.band_room(low < high, len(ranges))
        if self.owner.size < self.band.size:
            self.owner = np.empty(self.band.size, np.int32)
        if self.sums is not None:
            self.sums[:] = 0.0
        self.s[:] = self.q[:] = self.count[:] = 0.0
        self.filled = []
        return [
            partial(self._scan, first, last, bounds, i * room, (i + 1) * room)
            for i, (first, last) in enumerate(ranges)
        ]

    def _scan(
        self, first: int, last: int, bounds: tuple[Any, ...], begin: int, end: int
    ) -> tuple[int, int]:
        found = begin
        for i in range(first, last):
            s, q, count = (self.s, self.q, self.count) if self.sums is None else self.sums[:, i]
            found = _loops_columns.scan_columns(
                self.cube, self.one, *self.areas[i], *bounds, s, q, count, self.band, self.owner,
                found, end,
            )  # fmt: skip
        self.filled.append((begin, min(found, end)))
        return found, end

    def settle(self, kept: bool) -> None:
        if self.sums is not None:
            self.s, self.q, count = self.sums.sum(axis=1)
            self.count = count.astype(np.float32)
        if not kept:
            self.held[:] = 0
            return
        parts = [slice(*filled) for filled in sorted(self.filled)]
        values = np.concatenate([self.band[part] for part in parts])
        owner = np.concatenate([self.owner[part] for part in parts])
        _loops_columns.sort_band(values, owner, self.held, self.offset, self.band)

    def write_tasks(self, mu: float) -> list[Callable[[], None]]:
        _, head, tail = self.thresholds(mu, mu)
        return [
            partial(
                _loops_columns.write_columns, self.cube, self.block.out, self.one, *area, head[0],
                tail[0], self.factor,
            )
            for area in self.areas
        ]  # fmt: skip

    def find_largest(self, vectors: NDArray[np.intp], at: NDArray[np.intp]) -> None:
        _loops_columns.largest_of_columns(
            self.cube, vectors, np.empty(vectors.size, self.dtype), at
        )

    def entries(self, vectors: NDArray[np.intp], at: NDArray[np.intp]) -> NDArray[Any]:
        outer, inner = np.divmod(vectors, self.values.shape[2])
        found: NDArray[Any] = self.values[outer, at, inner]
        return found

    def place(self, vectors: NDArray[np.intp], at: NDArray[np.intp], value: NDArray[Any]) -> None:
        outer, inner = np.divmod(vectors, self.values.shape[2])
        assert self.block.out is not None
        self.block.out[outer, at, inner] = value

    def sample(self, budget: int, least: int) -> NDArray[Any]:
        """Neighbouring columns share cache lines, so they are taken in small bunches."""
        outer, length, width = self.values.shape
        wanted = min(max(8, budget // length), max(1, 4 * budget // least))
        bunch = min(width, 16)
        bunches = max(1, wanted // bunch)
        if outer >= bunches:
            places = [(a, 0) for a in range(0, outer, max(1, outer // bunches))]
        else:
            per = max(1, bunches // outer)
            gap = max(bunch, width // per)
            places = [(a, b) for a in range(outer) for b in range(0, width - bunch + 1, gap)]
        lines = max(1, length // max(budget // (len(places) * bunch), least))
        some = np.empty((1, -(-length // lines), len(places) * bunch), self.dtype)
        # A bunch moved as one item: NumPy's loops over so few numbers cost more than the data.
        whole = np.dtype((np.void, bunch * some.itemsize))
        bunched = some[0].view(whole)
        for i, (a, b) in enumerate(places):
            bunched[:, i] = self.values[a, ::lines, b : b + bunch].view(whole)[:, 0]
        return some


def thinned(rows: NDArray[Any], entries: int) -> NDArray[Any]:
    """About so many entries of each row, in evenly spaced stretches."""
    length = rows.shape[1]
    if length <= 2 * entries:
        return rows
    stretch = 64
    whole = rows[:, : length // stretch * stretch].reshape(len(rows), -1, stretch)
    every = whole.shape[1] * stretch // entries
    return whole[:, ::every].reshape(len(rows), -1)


def _flat(values: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The memory of row-like values as one array, and how many entries lie between two rows."""
    values = _writeable(values)
    if values.flags.c_contiguous:
        return values.reshape(-1), values.shape[1]
    pitch = values.strides[0] // values.itemsize
    stretch = (len(values) - 1) * pitch + values.shape[1]
    return np.lib.stride_tricks.as_strided(values, (stretch,), (values.itemsize,)), pitch


def _writeable(values: NDArray[Any]) -> NDArray[Any]:
    """The same memory without the read-only mark, on which compiled code would be specialised."""
    if values.flags.writeable:
        return values
    span = sum((n - 1) * stride for n, stride in zip(values.shape, values.strides, strict=True))
    memory = (ctypes.c_char * (span + values.itemsize)).from_address(values.ctypes.data)
    return np.ndarray(values.shape, values.dtype, memory, strides=values.strides)
