"""The factorisation of a Dask array: samples stay where they are, only small sums travel.

Each chunk of samples keeps its columns of W beside it. An iteration is one pass: every chunk
updates its columns, and the r × r and r × m sums come in over a tree. Under ``hoyer_W`` the vectors
of W run through all chunks; the sweeps need nothing of the other chunks even then, and the
projection's one unknown is found by the core's own root finder, whose ``evaluate`` is a pass over
the chunks here.

All tasks are pure functions of what they are given, so a worker that is lost costs time only: the
scheduler makes its pieces again from the data.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import InvalidInput, UnsupportedType, missing_extra
from .arrays import Vector
from .constraints import Target
from .initialisation import check_custom, random_codes, random_components
from .samples import check_block
from .sources import Source, encode_block
from .updates import Update

try:
    from dask import array, base
    from dask.delayed import delayed

    from .dask_pieces import DaskSamples, gathered
except ImportError as error:  # pragma: no cover
    raise missing_extra("dask", "dask") from error

da: Any = array  # most of it has no type hints
scheduler: Any = base


class DaskSource(Source):
    """A Dask array whose chunks are blocks of samples."""

    def __init__(self, x: Any) -> None:
        if not isinstance(x, da.Array) or x.ndim != 2:
            raise UnsupportedType(f"X is a {type(x).__name__}; expected a 2-dimensional dask array")
        if not isinstance(x._meta, np.ndarray):
            raise UnsupportedType(
                f"X has chunks of type {type(x._meta).__name__}; expected NumPy arrays, as from "
                "X.map_blocks(lambda chunk: chunk.toarray())"
            )
        if np.isnan(sum(map(sum, x.chunks))):
            raise InvalidInput("X has chunks of unknown size; call X.compute_chunk_sizes() first")
        if x.dtype.kind not in "fiu":
            raise UnsupportedType(f"X has dtype {x.dtype}; expected floats or integers")
        if x.dtype not in (np.float32, np.float64):
            x = x.astype(np.float64)
        super().__init__(x.rechunk({1: -1}))
        stops = np.cumsum((0, *self.x.chunks[0]))
        self.rows = [slice(int(start), int(stop)) for start, stop in pairwise(stops)]
        self.chunks = list(self.x.to_delayed()[:, 0])

    def _peaks(self) -> Any:
        return scheduler.compute(*(delayed(check_block)(chunk) for chunk in self.chunks))

    def samples(self, update_w: Update) -> DaskSamples:
        return DaskSamples(self.chunks, self.shape, update_w, self.dtype)

    def _from_svd(self, init: str, r: int, seed: int) -> tuple[Any, Any]:
        raise InvalidInput(f"init={init!r} is not for Dask arrays; use 'random' or 'custom'")

    def _default_init(self) -> str:
        return "random"

    def _custom(self, r: int, w: Any, h: Any) -> tuple[Any, Any]:
        h = check_custom(h, (r, self.shape[1]), "H")
        if w is None or tuple(w.shape) != (self.shape[0], r):
            raise InvalidInput(f"init='custom' needs W of shape {(self.shape[0], r)}")
        pieces = [self._piece(w[rows]) for rows in self.rows]
        scheduler.compute(*(delayed(check_block)(piece, "W") for piece in pieces))
        return pieces, self.own(h)

    def _piece(self, rows: Any) -> Any:
        if hasattr(rows, "to_delayed"):
            rows = rows.rechunk(-1).to_delayed()[0, 0]
        return delayed(_as_piece)(rows, self.dtype)

    def _random(self, r: int, seed: int) -> tuple[Any, Any]:
        scale = float(np.sqrt(self._mean() / r))
        pieces = [
            delayed(_random_piece)(scale, seed, r, rows.start, rows.stop, self.dtype)
            for rows in self.rows
        ]
        return pieces, self.own(scale * random_components(seed, r, self.shape[1]))

    def _mean(self) -> float:
        return float(self.x.mean().compute())

    def encode(self, h: Any) -> Any:
        h = self.own(h)
        return [delayed(encode_block)(chunk, h, h @ h.T) for chunk in self.chunks]

    def codes(self, w: Any, r: int) -> Any:
        parts = [
            da.from_delayed(delayed(np.transpose)(piece), (rows.stop - rows.start, r), self.dtype)
            for piece, rows in zip(w, self.rows, strict=True)
        ]
        return da.concatenate(parts)

    def divide(self, w: Any, scale: Vector) -> Any:
        column = scale[:, None].astype(self.dtype)
        return [delayed(np.divide)(piece, column) for piece in w]

    def measure_codes(self, w: Any, target: Target | None) -> float:
        n = self.shape[0]
        if n < 2:
            return float("nan")
        total, squares = gathered([delayed(_sums_for_measure)(piece) for piece in w])
        ratio = np.where(squares > 0.0, total / np.sqrt(np.where(squares > 0.0, squares, 1.0)), 1.0)
        each = (np.sqrt(n) - ratio) / (np.sqrt(n) - 1.0)
        return float(each.min() if target is not None and target.per_vector else each.mean())


def _as_piece(rows: Any, dtype: Any) -> Any:
    return np.ascontiguousarray(np.asarray(rows).T, dtype=dtype)


def _random_piece(scale: float, seed: int, r: int, start: int, stop: int, dtype: Any) -> Any:
    return np.ascontiguousarray(scale * random_codes(seed, r, start, stop), dtype=dtype)


def _sums_for_measure(piece: Any) -> Any:
    wide = piece.astype(np.float64)
    return np.array([wide.sum(axis=1), (wide * wide).sum(axis=1)])
