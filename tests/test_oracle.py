"""The oracle against answers known by hand and against two general-purpose searches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests import oracle
from tests.general_solver import betas, ones_like, random_problem, slsqp

SQUARE_ROOT_OF_2 = math.sqrt(2)
BY_HAND = [
    ([[3.0, 1.0]], None, 1.0, [[3.0, 0.0]]),
    ([[1.0, -3.0]], None, 1.0, [[0.0, -3.0]]),
    ([[-5.0, 0.1, 0.0, 0.0]], None, 0.1, [[-5.0, 0.1, 0.0, 0.0]]),
    ([[0.0, 0.0], [2.0, 2.0]], None, 0.5, [[0.0, 0.0], [2.0, 2.0]]),
    ([[7.0], [4.0, 3.0]], None, 1.0, [[7.0], [4.0, 0.0]]),
    ([[4.0, 1.0]], [[2.0, 1.0]], 1.0, [[0.0, 1.0]]),
    ([[4.0, 1.0, 2.0]], [[1.0, 0.0, 1.0]], 1.0, [[0.0, 1.0, 0.0]]),
]


@pytest.mark.parametrize(("vectors", "weights", "target", "expected"), BY_HAND)
def test_answers_known_by_hand(vectors, weights, target, expected):
    truth = oracle.solve(vectors, target, weights)
    for got, want in zip(truth.vectors, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-15, atol=0)


def test_two_entries_follow_the_closed_form():
    truth = oracle.solve([[3.0, 1.0]], 0.9)
    inner = SQUARE_ROOT_OF_2 - 0.9 * (SQUARE_ROOT_OF_2 - 1)
    angle = math.pi / 4 - math.acos(inner / SQUARE_ROOT_OF_2)
    x = np.array([math.cos(angle), math.sin(angle)])
    np.testing.assert_allclose(truth.vectors[0], (x @ [3, 1]) * x, rtol=1e-13)
    # 3 - t : 1 - t is x[0] : x[1], and beta is 1 / (sqrt(2) - 1)
    t = (x[0] - 3 * x[1]) / (x[0] - x[1])
    assert truth.multipliers == pytest.approx((t * (SQUARE_ROOT_OF_2 - 1),) * 2, rel=1e-13)


def test_tie_follows_the_closed_form():
    truth = oracle.solve([[3.0, 3.0, 1.0]], 0.9)
    inner = math.sqrt(3) - 0.9 * (math.sqrt(3) - 1)
    b = (inner - math.sqrt(2 - inner * inner)) / 2
    x = np.array([inner - b, b, 0.0])
    assert truth.kind == "tie"
    np.testing.assert_allclose(truth.vectors[0], (x @ [3, 3, 1]) * x, rtol=1e-13)
    assert truth.primal == pytest.approx(truth.dual, rel=1e-15)


def test_equal_entries_reach_every_target():
    for target in (0.0, 0.25, 0.5, 0.99, 1.0):
        truth = oracle.solve([np.ones(7), -2 * np.ones(3)], target)
        assert oracle.average(truth.vectors) == pytest.approx(target, abs=1e-15)


def test_design_example_of_a_weighted_jump():
    truth = oracle.solve([[4.0, 1.0]], 0.9, [[2.0, 1.0]])
    assert truth.kind == "jump"
    assert truth.primal == pytest.approx(1.249, abs=5e-4)
    np.testing.assert_allclose(truth.vectors[0] / truth.primal, [0.063, 0.998], atol=5e-4)
    assert oracle.hoyer(truth.vectors[0], [2.0, 1.0]) == pytest.approx(0.9, abs=1e-15)
    assert truth.dual > truth.primal


def test_a_corner_on_an_entry_that_is_zero():
    corner = oracle.solve([[4.0, 0.0]], 1.0, [[2.0, 1.0]])
    assert not corner.vectors[0].any()
    between = oracle.solve([[4.0, 0.0]], 0.9, [[2.0, 1.0]])
    assert oracle.hoyer(between.vectors[0], [2.0, 1.0]) == pytest.approx(0.9, abs=1e-15)


def test_measure_by_hand():
    assert oracle.hoyer([1.0, 1.0, 1.0, 1.0]) == 0.0
    assert oracle.hoyer([0.0, -2.0, 0.0]) == 1.0
    assert oracle.hoyer([0.0, 0.0]) == 1.0
    assert oracle.hoyer([3.0, 4.0, 0.0, 0.0]) == pytest.approx(2 - 7 / 5, rel=1e-15)
    root = math.sqrt(5)
    assert oracle.hoyer([1.0, 0.0], [2.0, 1.0]) == pytest.approx((root - 2) / (root - 1))
    assert oracle.average([[5.0], [1.0, 0.0], [1.0, 1.0]]) == 0.5
    rows = np.random.default_rng(0).normal(size=(9, 5)) * 1e300
    assert oracle.average_of_rows(rows) == pytest.approx(oracle.average(list(rows)), abs=1e-16)


@pytest.mark.parametrize("seed", range(40))
def test_answer_is_feasible_and_the_dual_is_least_at_its_multiplier(seed):
    vectors, weights, target = random_problem(seed)
    truth = oracle.solve(vectors, target, weights)
    assert truth.average == pytest.approx(oracle.average(truth.vectors, weights), abs=1e-13)
    assert truth.average >= target - 1e-14
    if truth.kind != "jump":
        assert truth.primal == pytest.approx(truth.dual, rel=1e-14)
    sized = ones_like(vectors) if weights is None else weights
    norms, beta = betas(vectors, sized)
    budget = sum(n * b for n, b in zip(norms, beta, strict=True)) - target * len(vectors)

    def dual(mu):
        total = mu * budget
        for c, w, b in zip(vectors, sized, beta, strict=True):
            d = np.abs(c) - mu * b * w
            total += np.linalg.norm(np.maximum(d, 0)) if d.max() > 0 else d.max()
        return total

    low, high = truth.multipliers
    assert dual(low) == pytest.approx(truth.dual, rel=1e-12)
    for mu in (low * 0.99, low * 1.01 + 1e-3, min(high, 1e6) * 1.01 + 1e-3):
        assert dual(mu) >= truth.dual * (1 - 1e-13)


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_no_general_solver_beats_the_oracle_unweighted(seed):
    vectors, _, target = random_problem(seed)
    truth = oracle.solve(vectors, target)
    weights = ones_like(vectors)
    relaxed = slsqp(vectors, target, weights, relaxed=True, starts=2, near=truth.vectors)
    sphere = slsqp(vectors, target, weights, relaxed=False, starts=4, near=truth.vectors)
    assert truth.primal == pytest.approx(relaxed, rel=1e-6)
    assert sphere <= truth.primal * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(1, 40, 2))
def test_no_general_solver_beats_the_dual_weighted(seed):
    vectors, weights, target = random_problem(seed)
    truth = oracle.solve(vectors, target, weights)
    sphere = slsqp(vectors, target, weights, relaxed=False, starts=2, near=truth.vectors)
    if truth.kind == "jump":
        assert sphere <= truth.dual * (1 + 1e-7)
    else:
        assert sphere == pytest.approx(truth.primal, rel=1e-7)


@pytest.mark.parametrize("target", [0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("weights", [[2.0, 1.0], [1.0, 1.0], [0.0, 1.0], [3.0, 2.5]])
@pytest.mark.parametrize("vector", [[4.0, 1.0], [1.0, 1.0], [2.0, 1.0], [1.0, 5.0]])
def test_single_vectors_of_two_entries_against_every_angle(vector, weights, target):
    angle = np.linspace(0, np.pi / 2, 200_001)
    x = np.stack([np.cos(angle), np.sin(angle)])
    norm = np.linalg.norm(weights)
    measure = (norm - np.array(weights) @ x) / (norm - min(weights))
    best = float((np.array(vector) @ x)[measure >= target].max())
    truth = oracle.solve([vector], target, [weights])
    assert truth.primal == pytest.approx(best, abs=np.linalg.norm(vector) * angle[1])


def test_extreme_ranges_change_nothing():
    rng = np.random.default_rng(5)
    vectors = list(rng.normal(size=(3, 9)))
    plain = oracle.solve(vectors, 0.8)
    for scale in (2.0**996, 2.0**-990):
        truth = oracle.solve([v * scale for v in vectors], 0.8)
        for got, want in zip(truth.vectors, plain.vectors, strict=True):
            np.testing.assert_allclose(got / scale, want, rtol=1e-15)
    spread = oracle.solve([vectors[0], vectors[1] * 1e-12, vectors[2] * 1e12], 0.8)
    assert oracle.average(spread.vectors) == pytest.approx(0.8, abs=1e-15)
    both_ends = oracle.solve([vectors[0] * 1e300, vectors[1] * 1e-300], 0.8)
    assert oracle.average(both_ends.vectors) == pytest.approx(0.8, abs=1e-15)
