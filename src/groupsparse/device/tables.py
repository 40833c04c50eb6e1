"""What the Triton kernel must know about a set of tensors, as tables that go to the device once.

Everything about shapes is settled here: which entries form a vector, which tiles fit, and which
program walks which vectors. Programs get equal shares of the bytes, in the order of the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..layout import memory_view

Table = NDArray[np.int64]

# The types that the kernels read and write; a set of them is the sum.
DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 4, torch.float64: 8}
# Kinds of segments; the kernel has the same numbers. Tiles: vectors × entries.
ROWS_16, ROWS_64, ROWS_128, ROWS_LONG, ROWS_LONGER = range(5)
ROWS_LOOSE, SPLIT, COLUMNS_16, COLUMNS = range(5, 9)
TILES = {
    ROWS_16: (128, 16),
    ROWS_64: (16, 64),
    ROWS_128: (8, 128),
    ROWS_LONG: (8, 128),
    ROWS_LONGER: (2, 512),
    ROWS_LOOSE: (16, 32),  # rows that begin anywhere, so that no load can be wide
    SPLIT: (1, 1024),
    COLUMNS_16: (128, 16),
    COLUMNS: (8, 128),
}
# What a byte costs beside one of long rows that can be loaded in wide pieces.
COSTS = {ROWS_16: 1.5, ROWS_64: 1.2, ROWS_128: 1.2, ROWS_LOOSE: 3.5, COLUMNS_16: 1.5, COLUMNS: 1.2}
# What each vector of a tile costs beside its entries, in entries; what a program's first look at a
# tensor costs, beside all that it walks. Nobody may wait for the one with five small tensors.
FINISHING, BEGINNING = 100.0, 0.25
WEIGHTED_TILES = {ROWS_16: (64, 16), ROWS_LONG: (8, 128), COLUMNS_16: (64, 16), COLUMNS: (8, 128)}
# Too long for a tile: two numbers wait per vector.
KEEPS_SLOTS = (ROWS_LONG, ROWS_LONGER, ROWS_LOOSE, COLUMNS)
LIMITS = {1: float(np.finfo(np.float32).max), 2: 3.3895313892515355e38, 4: 65504.0}
LIMITS[8] = float(np.finfo(np.float64).max)

LEAST_SHARE = 1 << 13  # bytes; below that a program costs more than it brings
SPLIT_FROM = 1 << 15  # bytes of a vector that several programs may walk
SAMPLED_FROM = 1 << 15  # bytes of a group whose search begins on a sample
SAMPLE_BYTES, MOST_SAMPLED, LEAST_SAMPLED = 1 << 18, 4, 16  # one vector in 4 to 16


@dataclass(frozen=True)
class Shape:
    """One tensor as ``vectors`` vectors of ``length`` entries, with strides in entries."""

    vectors: int
    length: int
    inner: int  # how many vectors lie interleaved; 1: each one lies in one piece
    stride: int  # from one vector (or one set of interleaved ones) to the next
    step: int  # from one entry to the next
    item: int
    aligned: bool

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        strides: Sequence[int],
        item: int,
        axes: tuple[int, ...],
        addresses: Sequence[int],
    ) -> Shape | None:
        """The shape of a tensor whose vectors lie along ``axes``; None where it must be copied."""
        seen = memory_view(shape, [s * item for s in strides], item, axes)
        if seen is None:
            return None
        sizes, steps = seen
        steps = [s // item for s in steps]
        outer, length = sizes[0], sizes[1]
        inner = sizes[2] if len(sizes) == 3 else 1
        stride = steps[0] if outer > 1 else length * inner
        aligned = stride % 8 == 0 and length % 8 == 0 and all(a % 16 == 0 for a in addresses)
        return cls(outer * inner, length, inner, stride, steps[1], item, aligned and inner == 1)

    @property
    def entries(self) -> int:
        return self.vectors * self.length


@dataclass
class Tables:
    """The tables, in the order in which the kernel takes them, and what the host keeps."""

    tensors: Table
    segments: Table
    programs: Table
    groups: Table
    splits: Table
    kinds: int
    aligned: bool  # every vector that several programs walk
    parts: int
    slots: int
    tops: list[float]  # Σ √n β of each group
    counts: list[int]
    sample_tops: list[float]
    sample_counts: list[int]
    lengths: list[int] = field(default_factory=list)  # of the split vectors
    weighted: bool = False  # then ``tops`` are the device's to find


def kind_of(shape: Shape, share: float) -> int:
    """Which tiles suit a tensor."""
    if shape.inner > 1:
        return COLUMNS_16 if shape.length <= 16 else COLUMNS
    size = shape.length * shape.item
    if size > max(SPLIT_FROM, 0.5 * share):
        return SPLIT
    if shape.length <= TILES[ROWS_16][1]:
        return ROWS_16
    if not shape.aligned:
        return ROWS_LOOSE
    for kind in (ROWS_64, ROWS_128):
        if shape.length <= TILES[kind][1]:
            return kind
    # Few long vectors for each program: tiles of eight would stay half empty.
    return ROWS_LONGER if shape.length >= 1024 and share < 32 * size else ROWS_LONG


def weighted_kind_of(shape: Shape) -> int:
    """Which tiles suit a tensor with weights, whose vectors are walked by one program each."""
    if shape.inner > 1:
        return COLUMNS_16 if shape.length <= 16 else COLUMNS
    return ROWS_16 if shape.length <= 16 else ROWS_LONG


def build(
    shapes: Sequence[Shape],
    dtypes: Sequence[int],
    addresses: Sequence[tuple[int, int]],
    groups: Sequence[int],
    programs: int,
    *,
    weighted: bool = False,
) -> Tables:
    """Tables for these tensors, tensor i in group ``groups[i]`` (in ascending order)."""
    total = sum(shape.entries * shape.item for shape in shapes)
    programs = max(1, min(programs, total // LEAST_SHARE))
    share = total / programs
    sampled = _sampling(shapes, groups)
    kinds = [kind_of(shape, share) for shape in shapes]
    if weighted:
        sampled = [0] * len(sampled)
        kinds = [weighted_kind_of(shape) for shape in shapes]
    costs = [
        shape.entries * shape.item * (COSTS.get(kind) or 1.0 + FINISHING / shape.length)
        for shape, kind in zip(shapes, kinds, strict=True)
    ]
    beginning = BEGINNING * sum(costs) / programs
    share = sum(costs, beginning * len(costs)) / programs
    builder = _Builder(share, beginning, programs, max(groups) + 1, sampled, weighted)
    for row in zip(shapes, dtypes, addresses, groups, kinds, costs, strict=True):
        builder.add(*row)
    return builder.finish()


def _sampling(shapes: Sequence[Shape], groups: Sequence[int]) -> list[int]:
    """One vector in how many each group's sample has; 0: no sample."""
    size = [0] * (max(groups) + 1)
    for shape, group in zip(shapes, groups, strict=True):
        size[group] += shape.entries * shape.item
    return [
        min(max(s // SAMPLE_BYTES, MOST_SAMPLED), LEAST_SAMPLED) if s >= SAMPLED_FROM else 0
        for s in size
    ]


class _Builder:
    def __init__(
        self,
        share: float,
        beginning: float,
        programs: int,
        groups: int,
        sampled: list[int],
        weighted: bool,
    ) -> None:
        self.share, self.programs, self.sampled = share, programs, sampled
        self.beginning = beginning
        self.keeps = tuple(WEIGHTED_TILES) if weighted else KEEPS_SLOTS
        self.tiles = WEIGHTED_TILES if weighted else TILES
        self.weighted = weighted
        self.offset = 0.0  # costs before the next tensor
        self.slot = self.part = self.kinds = 0
        self.aligned = True  # every split vector
        self.tensors: list[list[int]] = []
        self.segments: list[list[int]] = []
        self.owners: list[int] = []
        self.splits: list[list[int]] = []
        self.lengths: list[int] = []
        self.first_part = [-1] * groups
        self.last_part = [0] * groups
        self.tops, self.sample_tops = [0.0] * groups, [0.0] * groups
        self.counts, self.sample_counts = [0] * groups, [0] * groups

    def add(
        self,
        shape: Shape,
        dtype: int,
        address: tuple[int, int],
        group: int,
        kind: int,
        cost: float,
    ) -> None:
        self.kinds |= 1 << kind
        self.aligned &= shape.aligned or kind != SPLIT
        index = len(self.tensors)
        limit = int(np.float64(1.0 / LIMITS[dtype]).view(np.int64))
        walk = [shape.length, shape.stride, shape.step, shape.inner, shape.item]
        self.tensors.append([*address, *walk, dtype, self.slot, limit])
        if kind in self.keeps:
            self.slot += shape.vectors
        root = math.sqrt(shape.length)
        top = root / (root - 1.0)
        self.tops[group] += top * shape.vectors
        self.counts[group] += shape.vectors
        if self.first_part[group] < 0:
            self.first_part[group] = self.part
        if kind == SPLIT:
            for vector in range(shape.vectors):
                self._split(shape, index, group, vector, top)
        else:
            self._whole(shape, index, group, kind, top, cost)
        self.last_part[group] = self.part

    def _whole(
        self, shape: Shape, index: int, group: int, kind: int, top: float, cost: float
    ) -> None:
        rows = self.tiles[kind][0]
        blocks = -(-shape.inner // rows)
        units = shape.vectors // shape.inner * blocks if shape.inner > 1 else shape.vectors
        for program, first, end in self._shares(units, cost / units):
            sample_end = end
            if self.sampled[group]:
                sample_end = first + -(-(end - first) // self.sampled[group])
                count = sample_end - first
                if shape.inner > 1:
                    blocks_seen = (u % blocks for u in range(first, sample_end))
                    count = sum(min(rows, shape.inner - b * rows) for b in blocks_seen)
                self.sample_tops[group] += top * count
                self.sample_counts[group] += count
            self.segments.append([index, group, kind, first, end, sample_end, self.part, -1, 0])
            self.owners.append(program)
            self.part += 1

    def _split(self, shape: Shape, index: int, group: int, vector: int, top: float) -> None:
        step = TILES[SPLIT][1]
        units = -(-shape.length // step)
        raw, seen = len(self.segments), 0
        for program, first, end in self._shares(units, shape.length * shape.item / units):
            sampled = self.sampled[group]
            sample_end = first + -(-(end - first) // sampled) if sampled else end
            seen += min(sample_end * step, shape.length) - first * step
            self.segments.append(
                [index, group, SPLIT, first, end, sample_end, vector, len(self.splits), 0]
            )
            self.owners.append(program)
        self.splits.append([index, group, vector, raw, len(self.segments), self.part, seen])
        self.lengths.append(shape.length)
        self.part += 1
        if self.sampled[group]:
            self.sample_tops[group] += top
            self.sample_counts[group] += 1

    def _shares(self, units: int, cost: float) -> list[tuple[int, int, int]]:
        """Who walks which of a run of units that cost the same."""
        begin = self.offset + self.beginning
        end = begin + units * cost
        self.offset = end
        first = int(begin / self.share)
        last = min(math.ceil(end / self.share), self.programs)
        edges = [0]
        edges += [
            min(max(round((p * self.share - begin) / cost), 0), units)
            for p in range(first + 1, last)
        ]
        edges.append(units)
        pairs = zip(range(first, last + 1), edges[:-1], edges[1:], strict=False)
        return [(min(p, self.programs - 1), a, b) for p, a, b in pairs if b > a]

    def _last_of_groups(self) -> Iterable[list[int]]:
        """The last segment of whole vectors that each program has of each group."""
        whole = ((o, s) for o, s in zip(self.owners, self.segments, strict=True) if s[2] != SPLIT)
        return {(owner, segment[1]): segment for owner, segment in whole}.values()

    def finish(self) -> Tables:
        bounds = np.searchsorted(self.owners, np.arange(self.programs + 1))
        arrivals = [0] * len(self.sampled)  # how many report a group's round as done
        for row in self._last_of_groups():
            row[-1] = 1
            arrivals[row[1]] += 1
        for split in self.splits:
            arrivals[split[1]] += 1
        groups = [
            [first, last, int(sampled > 0), expected]
            for first, last, sampled, expected in zip(
                self.first_part, self.last_part, self.sampled, arrivals, strict=True
            )
        ]
        return Tables(
            _table(self.tensors),
            _table(self.segments),
            _table(bounds),
            _table(groups),
            _table(self.splits or [[0] * 7]),
            self.kinds,
            self.aligned,
            self.part,
            max(self.slot, 1),
            self.tops,
            self.counts,
            self.sample_tops,
            self.sample_counts,
            self.lengths,
            self.weighted,
        )


def _table(rows: Any) -> Table:
    return np.ascontiguousarray(rows, dtype=np.int64)
