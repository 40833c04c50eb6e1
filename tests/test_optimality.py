"""The answers are optimal, not just feasible: SLSQP, the optimality conditions, and chance."""

from __future__ import annotations

import numpy as np
import pytest

import groupsparse as gs
from tests import oracle
from tests.agreement import KERNELS, WEIGHTED_KERNELS
from tests.general_solver import betas, ones_like, random_problem, slsqp

SLOW = (7, 13)  # SLSQP takes seconds for these; the oracle's own tests have them


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(0, 30, 2))
def test_no_general_solver_finds_more(seed, kernel):
    vectors, _, target = random_problem(seed)
    p = gs.solve(vectors, target, kernel=kernel)
    assert p.kernel == kernel
    # Without weights the relaxation has no gap, so SLSQP must find the very same value.
    found = slsqp(vectors, target, ones_like(vectors), relaxed=True, starts=2, near=p.value)
    assert p.primal == pytest.approx(found, rel=1e-6)
    assert p.primal == pytest.approx(p.dual, rel=1e-10)


@pytest.mark.parametrize("kernel", WEIGHTED_KERNELS)
@pytest.mark.parametrize("seed", [s for s in range(1, 40, 2) if s not in SLOW])
def test_no_general_solver_finds_more_with_weights(seed, kernel):
    vectors, weights, target = random_problem(seed)
    p = gs.solve(vectors, target, weights=weights, kernel=kernel)
    assert p.kernel == kernel
    found = slsqp(vectors, target, weights, relaxed=False, starts=2, near=p.value)
    if oracle.solve(vectors, target, weights).kind == "jump":
        assert found <= p.dual * (1 + 1e-7)
    else:
        assert p.primal == pytest.approx(found, rel=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_answer_has_the_form_that_the_multiplier_gives(weighted):
    rng = np.random.default_rng(0)
    array = rng.normal(size=(12, 30))
    weights = rng.uniform(0.5, 2.0, array.shape) if weighted else np.ones(array.shape)
    p = gs.solve(array, 0.8, weights=weights if weighted else None)
    _, beta = betas(list(array), list(weights))
    excess = np.maximum(np.abs(array) - p.multiplier * np.array(beta)[:, None] * weights, 0)
    x = excess / np.linalg.norm(excess, axis=1, keepdims=True)
    scale = (x * np.abs(array)).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p.value, scale * np.sign(array) * x, rtol=0, atol=1e-12)
    assert p.primal == pytest.approx(scale.sum(), rel=1e-13)


@pytest.mark.parametrize("target", [0.5, 0.8, 0.95])
def test_feasible_points_near_the_answer_are_worse(target):
    rng = np.random.default_rng(1)
    array = np.abs(rng.normal(size=(4, 6)))
    p = gs.solve(array, target)
    x = p.value / np.linalg.norm(p.value, axis=1, keepdims=True)
    tried = 0
    for step in np.geomspace(1e-4, 0.3, 3000):
        y = np.maximum(x + step * rng.normal(size=x.shape) * (rng.random(x.shape) < 0.4), 0)
        y /= np.linalg.norm(y, axis=1, keepdims=True)
        if gs.average_hoyer(y) >= target:
            tried += 1
            assert (y * array).sum() <= p.primal * (1 + 1e-12)
    assert tried > 50


def test_distance_is_what_the_objective_says():
    # |c - z|^2 = |c|^2 - (x.c)^2 for each vector: a larger objective is a closer answer.
    array = np.random.default_rng(2).normal(size=(7, 11))
    z = gs.project(array, 0.8)
    left = ((array - z) ** 2).sum(axis=1)
    right = (array**2).sum(axis=1) - (z**2).sum(axis=1)
    np.testing.assert_allclose(left, right, rtol=1e-12)


def test_one_vector_alone_is_the_closest_of_its_measure():
    # With a single vector the operator is a true projection: nothing of this measure is closer.
    rng = np.random.default_rng(3)
    vector = rng.normal(size=5)
    z = gs.project(vector, 0.7)
    closest = np.linalg.norm(vector - z)
    for _ in range(3000):
        other = z + 0.3 * rng.normal(size=5) * np.abs(z).max() * rng.random()
        if gs.hoyer(other) >= 0.7:
            other *= (other @ vector) / (other @ other)
            assert np.linalg.norm(vector - other) >= closest * (1 - 1e-12)
