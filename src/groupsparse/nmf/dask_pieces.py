"""W in pieces beside the chunks of a Dask array, and the passes over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dask import base
from dask.delayed import delayed

from ..dual import Point, Search, find_root
from ..errors import InvalidInput
from .arrays import Vector, as_vector, gram_of, row_squares
from .constraints import Multiplier
from .samples import (
    State,
    Sums,
    column_sums,
    extrapolated,
    patterns,
    scores,
    squared_residual,
    squares,
)
from .sweeps import sweep
from .updates import ShrunkHals, Update

scheduler: Any = base  # has no type hints

# Partial sums that meet in one task.
FAN_IN = 8
# |average − target| at which the root counts as found.
TOLERANCE = 1e-13


class DaskSamples:
    """See :class:`groupsparse.nmf.samples.Samples`; a state holds one piece of W per chunk."""

    def __init__(
        self, chunks: Sequence[Any], shape: tuple[int, int], update: Update, dtype: Any
    ) -> None:
        if isinstance(update, ShrunkHals):
            if update.target.weights is not None:
                raise InvalidInput("weights_W is not for the W of a Dask array")
        elif not update.separable:
            raise InvalidInput("under hoyer_W a Dask array needs solver='auto'")
        self.chunks = chunks
        self.shape = shape
        self.update = update
        self.dtype = dtype
        self.squared_norm = float(gathered([delayed(squares)(chunk) for chunk in chunks]))

    def start(self, w: Any) -> State:
        return State(w, w)

    def advance(self, state: State, h: Any, momentum: float) -> tuple[State, Sums]:
        gram = h @ h.T
        factor = delayed(h)  # once in the graph, not once per chunk
        if isinstance(self.update, ShrunkHals):
            updated = _shrink(self.update, self.chunks, state.point, factor, gram, self.shape[0])
        else:
            updated = [
                delayed(_update)(self.update, chunk, piece, factor, gram)
                for chunk, piece in zip(self.chunks, state.point, strict=True)
            ]
        points = [
            delayed(extrapolated)(new, old, momentum)
            for new, old in zip(updated, state.updated, strict=True)
        ]
        total = self._total(State(updated, points))
        count = len(self.chunks)
        kept = scheduler.persist(*updated, *points, total)
        sums = kept[-1].compute()
        return State(list(kept[:count]), list(kept[count:-1])), Sums(*sums)

    def sums(self, state: State) -> Sums:
        return Sums(*self._total(state).compute())

    def _total(self, state: State) -> Any:
        pairs = zip(self.chunks, self.value(state), strict=True)
        return _tree([delayed(_sums)(chunk, w) for chunk, w in pairs])

    def value(self, state: State) -> Any:
        return state.point if self.update.separable else state.updated

    def squared_residual(self, state: State, h: Any) -> float:
        factor = delayed(h)
        parts = [
            delayed(squared_residual)(chunk, w, factor)
            for chunk, w in zip(self.chunks, self.value(state), strict=True)
        ]
        return float(gathered(parts))

    def mean(self) -> Any:
        return gathered([delayed(column_sums)(chunk) for chunk in self.chunks]) / self.shape[0]

    def mean_of(self, state: State) -> Any:
        parts = [delayed(np.sum)(piece, axis=1) for piece in self.value(state)]
        return gathered(parts) / self.shape[0]


def gathered(parts: list[Any]) -> Any:
    """The sum of all parts, brought here over a tree."""
    return _tree(parts).compute()


def _tree(parts: list[Any]) -> Any:
    while len(parts) > 1:
        groups = [parts[i : i + FAN_IN] for i in range(0, len(parts), FAN_IN)]
        parts = [delayed(_add)(group) for group in groups]
    return parts[0]


def _shrink(
    update: ShrunkHals, chunks: Sequence[Any], points: Any, h: Any, gram: Any, n: int
) -> list[Any]:
    """The update of :class:`ShrunkHals` on rows that run through all chunks."""
    fallback = np.sqrt(gathered([delayed(row_squares)(piece) for piece in points]))
    scale, shift, gain = update.thresholds(n, fallback, as_vector(gram.diagonal()))
    minima = scheduler.persist(
        *(
            delayed(_scaled_minima)(chunk, piece, h, gram, update.sweeps, shift, gain, scale)
            for chunk, piece in zip(chunks, points, strict=True)
        )
    )
    rows = _DistributedRows(minima, n)
    solve = rows.each_multiplier if update.target.per_vector else rows.multiplier
    mu = solve(update.target.hoyer, update.multiplier)
    factors, corners, length, sums = rows.answer(mu)
    update.settle(mu, length / scale, sums / scale)
    return [
        delayed(_write)(piece, rows.thresholds(mu), factors / scale, corner / scale)
        for piece, corner in zip(minima, corners, strict=True)
    ]


class _DistributedRows:
    """The sums of the projection's kernel, over rows in pieces."""

    def __init__(self, pieces: Sequence[Any], n: int) -> None:
        self.pieces = pieces
        self.n = n
        self.beta = float(1.0 / (np.sqrt(n) - 1.0))
        self.maxima = np.array(scheduler.compute(*(delayed(np.max)(p, axis=1) for p in pieces)))
        self.tops: Vector = self.maxima.max(axis=0).astype(np.float64)
        self.count = len(self.tops)
        self.last: tuple[Vector, Any] | None = None

    def multiplier(self, hoyer: float, start: Multiplier) -> float:
        """The one with which the rows meet the target on average."""
        return find_root(
            self.evaluate,
            self.count * (np.sqrt(self.n) * self.beta - hoyer),
            TOLERANCE * self.count,
            lambda: float(self.uppers().max()),
            start=float(start),
            slack=TOLERANCE * self.count,
        ).mu

    def each_multiplier(self, hoyer: float, start: Multiplier) -> Vector:
        """Those with which each row meets the target, all found side by side."""
        level = float(np.sqrt(self.n) * self.beta - hoyer)
        starts = np.broadcast_to(start, self.count)
        searches = [Search(level, TOLERANCE, start=float(mu), slack=TOLERANCE) for mu in starts]
        ends = [lambda end=end: end for end in self.uppers().tolist()]
        mu = np.zeros(self.count)
        while True:
            asked = [one.propose(end) for one, end in zip(searches, ends, strict=True)]
            for i, value in enumerate(asked):
                mu[i] = searches[i].root.mu if value is None else value
            if all(value is None for value in asked):
                return mu
            totals, slopes = self._terms(mu)
            for i, value in enumerate(asked):
                if value is not None:
                    searches[i].add(Point(value, float(totals[i]), float(slopes[i])))

    def thresholds(self, mu: Multiplier) -> Vector:
        return np.broadcast_to(np.asarray(mu) * self.beta, self.count)

    def _sums(self, mu: Multiplier) -> Any:
        t = self.thresholds(mu)
        if self.last is None or not np.array_equal(self.last[0], t):
            self.last = t, gathered([delayed(_excess_sums)(piece, t) for piece in self.pieces])
        return self.last[1]

    def evaluate(self, mu: float) -> tuple[float, float]:
        totals, slopes = self._terms(mu)
        return float(totals.sum()), float(slopes.sum())

    def _terms(self, mu: Multiplier) -> tuple[Vector, Vector]:
        s, q, active = self._sums(mu)
        live = q > 0.0
        root = np.sqrt(np.where(live, q, 1.0))
        term = np.where(live, s / root, 1.0)  # where nothing is left, the row is 1-sparse
        slope = np.where(live, (term * term - active) / root, 0.0)
        return self.beta * term, self.beta**2 * slope

    def uppers(self) -> Vector:
        """Multipliers at which nothing changes any more."""
        return self.tops / self.beta * (1.0 + 2.0**-50)

    def answer(self, mu: Multiplier) -> tuple[Vector, Vector, Vector, Vector]:
        """Factor of [c − t]₊ in each row; its corner entry by piece; norms and sums of the rows."""
        s, q, _ = self._sums(mu)
        live = q > 0.0
        q = np.where(live, q, 1.0)
        t = self.thresholds(mu)
        factors = np.where(live, 1.0 + t * s / q, 0.0)
        length = np.where(live, (q + t * s) / np.sqrt(q), self.tops)
        sums = np.where(live, factors * s, self.tops)
        corners = np.zeros(self.maxima.shape)
        dead = np.flatnonzero(~live)
        corners[self.maxima.argmax(axis=0)[dead], dead] = self.tops[dead]
        return factors, corners, length, sums


def _add(parts: list[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(sum(column) for column in zip(*parts, strict=True))
    return sum(parts)


def _update(update: Update, x: Any, point: Any, h: Any, gram: Any) -> Any:
    return update(point, scores(x, h), gram)


def _sums(x: Any, w: Any) -> tuple[Any, Any]:
    return patterns(x, w), gram_of(w)


def _scaled_minima(
    x: Any, point: Any, h: Any, gram: Any, sweeps: int, shift: Vector, gain: Vector, scale: Vector
) -> Any:
    factor, minima = point.copy(), np.empty_like(point)
    sweep(factor, scores(x, h), gram, sweeps=sweeps, shift=shift, gain=gain, minima=minima)
    return minima.clip(min=0) * scale[:, None].astype(minima.dtype)


def _excess_sums(piece: Any, t: Vector) -> Any:
    d = np.maximum(piece.astype(np.float64) - t[:, None], 0.0)
    return np.array([d.sum(axis=1), (d * d).sum(axis=1), np.count_nonzero(d, axis=1)])


def _write(piece: Any, t: Vector, factors: Vector, corner: Vector) -> Any:
    answer = np.maximum(piece.astype(np.float64) - t[:, None], 0.0) * factors[:, None]
    for k in np.flatnonzero(corner):
        answer[k, piece[k].argmax()] = corner[k]
    return answer.astype(piece.dtype)
