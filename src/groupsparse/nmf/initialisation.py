"""Where a factorisation starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .arrays import largest

# Random rows are drawn in pieces of this many samples, each from its own stream, so that every
# machine of a cluster draws the same numbers for its samples as one machine would.
PIECE = 4096

INITS = (None, "random", "nndsvd", "nndsvda", "nndsvdar", "custom")


def random_codes(seed: int, r: int, start: int, stop: int) -> NDArray[np.float64]:
    """Columns start … stop−1 of a random r × n factor, the same however they are cut up."""
    parts = []
    for piece in range(start // PIECE, -(-stop // PIECE)):
        stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, piece)))
        part = np.abs(stream.standard_normal((r, PIECE)))
        offset = piece * PIECE
        parts.append(part[:, max(start - offset, 0) : stop - offset])
    return np.concatenate(parts, axis=1) if parts else np.empty((r, 0))


def random_components(seed: int, r: int, m: int) -> NDArray[np.float64]:
    """A random r × m factor."""
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    return np.abs(stream.standard_normal((r, m)))


def nndsvd(x: Any, r: int, kind: str, seed: int) -> tuple[Any, Any]:
    """W (n × r) and H (r × m) from a truncated SVD (Boutsidis and Gallopoulos, 2008).

    Of each pair of singular vectors the heavier of their two non-negative parts is kept. The zeros
    that leaves are kept (nndsvd), set to the mean (nndsvda), or to small random numbers (nndsvdar).
    """
    from sklearn.utils.extmath import randomized_svd

    u, s, v = randomized_svd(x, r, random_state=seed)
    w, h = np.zeros_like(u), np.zeros_like(v)
    w[:, 0] = np.sqrt(s[0]) * np.abs(u[:, 0])
    h[0] = np.sqrt(s[0]) * np.abs(v[0])
    for k in range(1, r):
        pairs = [(np.maximum(sign * u[:, k], 0), np.maximum(sign * v[k], 0)) for sign in (1, -1)]
        a, b = max(pairs, key=lambda pair: np.linalg.norm(pair[0]) * np.linalg.norm(pair[1]))
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        if lengths > 0.0:
            share = np.sqrt(s[k] * lengths)
            w[:, k] = share * a / np.linalg.norm(a)
            h[k] = share * b / np.linalg.norm(b)
    mean = x.mean()
    if kind == "nndsvda":
        w[w == 0] = h[h == 0] = mean
    elif kind == "nndsvdar":
        stream = np.random.default_rng(seed)
        for factor in (w, h):
            empty = factor == 0
            factor[empty] = np.abs(mean * stream.standard_normal(int(empty.sum()))) / 100
    return w, h


def check_custom(factor: Any, shape: tuple[int, int], name: str) -> None:
    """Refuse a start that does not fit."""
    if factor is None:
        raise InvalidInput(f"init='custom' needs {name}, which is not given")
    if tuple(factor.shape) != shape:
        raise InvalidInput(f"{name} has shape {tuple(factor.shape)}; expected {shape}")
    if not (np.isfinite(largest(factor)) and float(factor.min()) >= 0.0):
        raise InvalidInput(f"{name} holds negative or non-finite entries")
    if largest(factor) == 0.0:
        raise InvalidInput(f"{name} is all zero, and nothing can grow from that")
