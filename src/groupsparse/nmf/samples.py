"""The data and the factor W that belongs to its samples, read once per iteration.

W is stored as r × n: column i belongs to sample i. An iteration needs of the data only two
products, H Xᵀ for the update of W and then W X for the update of H; X − WH is never formed. Data
that does not fit into memory is read in blocks of samples, and each block gives its share of both
in one reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import InvalidInput
from .arrays import dot, gram_of, is_tensor, on_host, wide
from .updates import Update

# A block of streamed data: large enough for the dense products, small beside any memory.
BLOCK_BYTES = 32 << 20
# A device has more memory, and many small products would leave most of it idle.
DEVICE_BLOCK_BYTES = 1 << 30
# Samples over which float32 tensors are summed in float32.
RUN = 4096


@dataclass(frozen=True)
class Sums:
    """What one reading of the data leaves: W X (r × m), and W Wᵀ (r × r) in float64."""

    patterns: Any
    gram: Any


@dataclass(frozen=True)
class State:
    """W as updated, and the point from which the next update starts; never changed, only replaced.

    Both are r × n arrays, or lists of pieces of one where the samples are spread over machines.
    """

    updated: Any
    point: Any


class Samples(Protocol):
    """Where the data lies is known here and nowhere else."""

    shape: tuple[int, int]
    squared_norm: float
    dtype: Any

    def start(self, w: Any) -> State: ...

    def advance(self, state: State, h: Any, momentum: float) -> tuple[State, Sums]:
        """Update W for the given H, extrapolate it, and sum up over all samples."""

    def sums(self, state: State) -> Sums:
        """The sums of a state as it is."""

    def value(self, state: State) -> Any:
        """The W that belongs to the sums ``advance`` returned."""

    def squared_residual(self, state: State, h: Any) -> float:
        """‖X − WH‖², formed entry by entry: for fits so good that the sums would cancel."""

    def mean(self) -> Any:
        """The average sample."""

    def mean_of(self, state: State) -> Any:
        """The average column of W."""


class LocalSamples:
    """Samples in the memory of this machine, or streamed from its disk.

    Parameters
    ----------
    x : array, sparse matrix, memory map or torch tensor of shape (n, m)
        In the form in which products are fastest; it is never copied.
    update : Update
        How W is updated.
    dtype : dtype
        In which to compute; blocks of streamed data are converted to it.
    streamed : bool
        Whether to read block by block.
    """

    def __init__(self, x: Any, update: Update, dtype: Any, *, streamed: bool = False) -> None:
        self.shape = (int(x.shape[0]), int(x.shape[1]))
        self.blocks = blocks_of(self.shape) if streamed else [slice(0, self.shape[0])]
        self.x = np.asarray(x, dtype=dtype) if streamed and len(self.blocks) == 1 else x
        self.update = update
        self.dtype = dtype
        self.squared_norm = sum(squares(block) for _, block in self._read())

    def _read(self) -> Iterator[tuple[slice, Any]]:
        if len(self.blocks) == 1:
            yield self.blocks[0], self.x
            return
        for rows in self.blocks:
            yield rows, np.asarray(self.x[rows], dtype=self.dtype)

    def start(self, w: Any) -> State:
        return State(w, w)

    def advance(self, state: State, h: Any, momentum: float) -> tuple[State, Sums]:
        gram = h @ h.T
        if len(self.blocks) == 1:
            updated = self.update(state.point, scores(self.x, h), gram)
            new = State(updated, extrapolated(updated, state.updated, momentum))
            return new, self.sums(new)
        return self._advance_in_blocks(state, h, gram, momentum)

    def _advance_in_blocks(
        self, state: State, h: Any, gram: Any, momentum: float
    ) -> tuple[State, Sums]:
        updated = np.empty_like(state.updated)
        if not self.update.separable:  # needs all scores at once, hence a second reading
            for rows, block in self._read():
                updated[:, rows] = scores(block, h)
            updated = self.update(state.point, updated, gram)
        point = np.empty_like(updated)
        total = np.zeros(h.shape, h.dtype)
        for rows, block in self._read():
            if self.update.separable:
                updated[:, rows] = self.update(state.point[:, rows], scores(block, h), gram)
            point[:, rows] = extrapolated(updated[:, rows], state.updated[:, rows], momentum)
            total += patterns(block, self.value(State(updated[:, rows], point[:, rows])))
        new = State(updated, point)
        return new, Sums(total, gram_of(self.value(new)))

    def sums(self, state: State) -> Sums:
        w = self.value(state)
        parts = [patterns(block, w[:, rows]) for rows, block in self._read()]
        return Sums(sum(parts[1:], start=parts[0]), gram_of(w))

    def value(self, state: State) -> Any:
        # An extrapolated W is as good as any, unless it has a target to meet.
        return state.point if self.update.separable else state.updated

    def squared_residual(self, state: State, h: Any) -> float:
        w = self.value(state)
        return sum(squared_residual(block, w[:, rows], h) for rows, block in self._read())

    def mean(self) -> Any:
        total = sum(column_sums(block) for _, block in self._read())
        return total / self.shape[0]

    def mean_of(self, state: State) -> Any:
        return self.value(state).sum(1) / self.shape[0]


def blocks_of(shape: tuple[int, int], size: int | None = None) -> list[slice]:
    """Cut samples into blocks of that many bytes, which are read one at a time."""
    rows = max(1, (size or BLOCK_BYTES) // (8 * shape[1]))
    return [slice(i, min(i + rows, shape[0])) for i in range(0, shape[0], rows)]


def extrapolated(updated: Any, before: Any, momentum: float) -> Any:
    """updated + momentum (updated − before), kept non-negative."""
    if momentum == 0.0:
        return updated
    if is_tensor(updated):
        return (updated + momentum * (updated - before)).clip_(min=0)
    from .sweeps_compiled import go_beyond

    ahead = np.empty_like(updated)
    go_beyond(updated, before, updated.dtype.type(momentum), ahead)
    return ahead


def scores(x: Any, h: Any) -> Any:
    """H Xᵀ, r × n."""
    return _row_major((x @ h.T).T) if _is_sparse(x) else h @ x.T


def patterns(x: Any, w: Any) -> Any:
    """W X, r × m."""
    if is_tensor(x) and len(x) >= 2 * RUN and wide(x) != x.dtype:
        return _in_runs(w, x)
    return _row_major((x.T @ w.T).T) if _is_sparse(x) else w @ x


def _in_runs(w: Any, x: Any) -> Any:
    """W X from products over runs of samples, summed in float64.

    Summed one after the other in float32, as CUDA and some of MKL's kernels do, all sums over many
    samples come out too small by the same 1e-6, and of the loss of a good fit nothing is right
    behind the second digit. Runs are as fast: a device has more to do at a time.
    """
    many = len(x) // RUN
    whole = many * RUN
    factors = w[:, :whole].unflatten(1, (many, RUN)).transpose(0, 1)
    total = (factors @ x[:whole].unflatten(0, (many, RUN))).sum(0, dtype=wide(x))
    if whole < len(x):
        total += w[:, whole:] @ x[whole:]
    return total.to(x.dtype)


def squared_residual(x: Any, w: Any, h: Any) -> float:
    """‖X − WH‖², a few samples at a time."""
    parts = []
    for rows in _parts_of(x):
        part = x[rows]
        rest = (part.toarray() if _is_sparse(part) else part) - w[:, rows].T @ h
        parts.append(dot(rest, rest))
    return float(sum(parts))


def column_sums(x: Any) -> Any:
    return np.asarray(x.sum(axis=0)).ravel() if not is_tensor(x) else x.sum(0)


def check_block(x: Any, name: str = "X") -> float:
    """Refuse what cannot be factorised, negative or non-finite entries; return the largest."""
    values = x.data if _is_sparse(x) else x
    if not values.shape or 0 in values.shape:
        return 0.0
    least, most = (float(end[0]) for end in on_host(values.min(), values.max()))
    if not (np.isfinite(least) and np.isfinite(most)):
        raise InvalidInput(f"{name} contains NaN or infinity; NMF needs finite, non-negative data")
    if least < 0.0:
        raise InvalidInput(f"Negative values in data: {name} has an entry {least}; NMF needs none")
    return most


def check_range(largest: float, shape: tuple[int, int], dtype: Any) -> None:
    """Refuse data whose squares vanish, or whose sum of squares is infinite."""
    limits = np.finfo(dtype)
    most = np.sqrt(float(limits.max) / max(shape[0] * shape[1], 1))
    least = np.sqrt(float(limits.tiny) / float(limits.eps))
    if largest > 0.0 and not least < largest < most:
        raise InvalidInput(
            f"the largest entry of X is {largest:.3g}: the squares of such numbers are out of the "
            f"range of {np.dtype(dtype).name}; multiply X by a power of two"
        )


def squares(x: Any) -> float:
    """‖X‖², without a second X beside the first."""
    if _is_sparse(x):
        return float(dot(x.data, x.data))
    return float(sum(dot(x[rows], x[rows]) for rows in _parts_of(x)))


def _parts_of(x: Any) -> list[slice]:
    there = is_tensor(x) and x.device.type != "cpu"
    return blocks_of((int(x.shape[0]), int(x.shape[1])), DEVICE_BLOCK_BYTES if there else None)


def _is_sparse(x: Any) -> bool:
    return hasattr(x, "tocsr")


def _row_major(x: Any) -> Any:
    return np.ascontiguousarray(x)
