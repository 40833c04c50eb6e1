"""Data that the NMF tests share."""

from __future__ import annotations

import numpy as np

import groupsparse as gs


def exact(
    n: int = 60, m: int = 40, r: int = 5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, float]:
    """Data with an exact factorisation, its parts and their average Hoyer measure."""
    random = np.random.default_rng(seed)
    parts = np.maximum(random.standard_normal((r, m)), 0)
    return random.random((n, r)) @ parts, parts, gs.average_hoyer(parts)


def noisy(n: int = 60, m: int = 40, r: int = 5, seed: int = 0) -> np.ndarray:
    """Data that has no exact factorisation."""
    random = np.random.default_rng(seed)
    return exact(n, m, r, seed)[0] + 0.2 * random.random((n, m))


def start(n: int, m: int, r: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A start for init='custom'."""
    random = np.random.default_rng([2, seed])
    return random.random((n, r)), random.random((r, m))


def error(x: np.ndarray, w: np.ndarray, h: np.ndarray) -> float:
    """‖X − WH‖/‖X‖, formed directly."""
    return float(np.linalg.norm(x - w @ h) / np.linalg.norm(x))
