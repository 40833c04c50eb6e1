"""Small random problems, and SLSQP on them: a solver that knows nothing of their structure."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize


def ones_like(vectors):
    return [np.ones(len(v)) for v in vectors]


def betas(vectors, weights):
    norms = [float(np.linalg.norm(w)) for w in weights]
    return norms, [1 / (n - float(min(w))) for n, w in zip(norms, weights, strict=True)]


def slsqp(vectors, target, weights, *, relaxed, starts, near=None, seed=0):
    """The best objective that SLSQP finds, over unit vectors or over a convex relaxation.

    The relaxation is the unit ball less the cap w.x < min w, which holds no unit vector x >= 0.
    The last four starts are around `near`, if that is given.
    """
    sizes = [len(v) for v in vectors]
    c = np.abs(np.concatenate(vectors))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    norms, beta = betas(vectors, weights)
    price = np.concatenate(weights) * np.repeat(beta, sizes)
    budget = sum(n * b for n, b in zip(norms, beta, strict=True)) - target * len(vectors)
    scale = float(c.max())

    def room(x):
        return 1 - np.bincount(owner, x * x)

    mine = owner == np.arange(len(sizes))[:, None]
    least = np.array([min(w) for w in weights])
    all_weights = np.concatenate(weights) * mine
    constraints = [
        {"type": "ineq", "fun": lambda x: budget - price @ x, "jac": lambda x: -price},
        {"type": "ineq" if relaxed else "eq", "fun": room, "jac": lambda x: -2 * x * mine},
    ]
    if relaxed:
        constraints.append(
            {
                "type": "ineq",
                "fun": lambda x: all_weights @ x - least,
                "jac": lambda x: all_weights,
            }
        )
    rng = np.random.default_rng(seed)
    best = -math.inf
    noises = [None] * starts + ([] if near is None else [0.01, 0.02, 0.05, 0.1])
    for noise in noises:
        x0 = rng.exponential(size=len(c)) ** 3
        if noise is not None:
            lengths = [np.linalg.norm(z) for z in near]
            x0 = np.abs(np.concatenate(near)) / np.repeat(lengths, sizes) + noise * x0
        x0 /= np.sqrt(np.bincount(owner, x0 * x0))[owner]
        found = minimize(
            lambda x: -(c @ x) / scale,
            x0,
            jac=lambda x: -c / scale,
            bounds=[(0, 1)] * len(c),
            constraints=constraints,
            options={"maxiter": 60, "ftol": 1e-13},
        )
        x = found.x
        feasible = budget - price @ x > -1e-8 and np.all(room(x) > -1e-8)
        on_sphere = relaxed or np.all(np.abs(room(x)) < 1e-8)
        if feasible and on_sphere:
            best = max(best, float(c @ x))
    return best


def random_problem(seed):
    """Few, short, ragged vectors: signs, scales, now and then weights and repeated values."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 6, size=rng.integers(1, 5))
    vectors = [rng.normal(size=n) * 10.0 ** rng.integers(-1, 2) for n in sizes]
    if seed % 3 == 0:
        vectors = [np.round(v, 0) + (not np.round(v, 0).any()) for v in vectors]
    weights = None
    if seed % 2:
        weights = [rng.integers(0, 4, size=n) * 1.0 + (n % 2) for n in sizes]
        weights = [w + (not w.any()) for w in weights]
    return vectors, weights, float(rng.uniform(0.2, 1.0))
