"""Where a factorisation starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .arrays import is_tensor, on_host

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
    u, s, v = truncated_svd(x, r, seed)
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
    mean = float(x.mean())
    if kind == "nndsvda":
        w[w == 0] = h[h == 0] = mean
    elif kind == "nndsvdar":
        stream = np.random.default_rng(seed)
        for factor in (w, h):
            empty = factor == 0
            factor[empty] = np.abs(mean * stream.standard_normal(int(empty.sum()))) / 100
    return w, h


def truncated_svd(x: Any, r: int, seed: int) -> tuple[Any, Any, Any]:
    """The r leading singular triplets, on the host."""
    if not is_tensor(x):
        from sklearn.utils.extmath import randomized_svd

        u, s, v = randomized_svd(x, r, random_state=seed)
        return u, s, v
    if x.shape[0] < x.shape[1]:
        u, s, v = _svd_of_tall(x.T, r, seed)
        return v.T, s, u.T
    return _svd_of_tall(x, r, seed)


def _svd_of_tall(x: Any, r: int, seed: int) -> tuple[Any, Any, Any]:
    """What scikit-learn's ``randomized_svd`` does, from the same random directions, on a tensor.

    Only the small factors leave the device.
    """
    import torch

    stream = np.random.RandomState(seed)
    ahead = x.new_tensor(stream.normal(size=(x.shape[1], r + 10)))
    for _ in range(7 if r < 0.1 * min(x.shape) else 4):
        ahead = torch.linalg.qr(x @ ahead).Q
        ahead = torch.linalg.qr(x.T @ ahead).Q
    basis = torch.linalg.qr(x @ ahead).Q
    u, s, v = torch.linalg.svd(basis.T @ x, full_matrices=False)
    found = ((basis @ u)[:, :r], s[:r], v[:r])
    return tuple(part.cpu().numpy() for part in found)


def check_custom(factor: Any, shape: tuple[int, int], name: str) -> Any:
    """Refuse a start that does not fit; return it as an array or a tensor."""
    if factor is None:
        raise InvalidInput(f"init='custom' needs {name}, which is not given")
    factor = factor if is_tensor(factor) else np.asarray(factor)
    if tuple(factor.shape) != shape:
        raise InvalidInput(f"{name} has shape {tuple(factor.shape)}; expected {shape}")
    least, most = (float(end[0]) for end in on_host(factor.min(), factor.max()))
    if not (np.isfinite(most) and least >= 0.0):
        raise InvalidInput(f"{name} holds negative or non-finite entries")
    if most == 0.0:
        raise InvalidInput(f"{name} is all zero, and nothing can grow from that")
    return factor
