"""What `solve` reports: multiplier, primal, dual, gap, measure, status, passes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.result import Status
from tests import oracle
from tests.agreement import KERNELS, WEIGHTED_KERNELS, rows, truth_of, weight_rows
from tests.general_solver import random_problem

WAYS = [(False, kernel) for kernel in KERNELS] + [(True, kernel) for kernel in WEIGHTED_KERNELS]


def agree(p, truth, rel=1e-9):
    """The certificate has the oracle's numbers; at a jump the answer may be better than its."""
    low, high = truth.multipliers
    assert low * (1 - 1e-8) <= p.multiplier <= high * (1 + 1e-8)
    assert p.dual == pytest.approx(truth.dual, rel=rel)
    if truth.kind == "jump":
        assert truth.primal * (1 - rel) <= p.primal <= truth.dual * (1 + rel)
    else:
        assert p.primal == pytest.approx(truth.primal, rel=rel)
    assert p.gap == p.dual - p.primal
    assert p.gap >= -rel * p.dual


@pytest.mark.parametrize(("weighted", "kernel"), WAYS)
@pytest.mark.parametrize("target", [0.0, 0.3, 0.6, 0.9, 0.99, 1.0])
def test_numbers_of_smooth_problems(weighted, target, kernel):
    rng = np.random.default_rng(0)
    array = rng.normal(size=(7, 31)) * rng.uniform(0.1, 10, (7, 1))
    weights = rng.uniform(0.5, 2.0, 31) if weighted else None
    p = gs.solve(array, target, weights=weights, kernel=kernel)
    assert p.kernel == kernel
    some = None if weights is None else weight_rows(weights, array, -1)
    agree(p, truth_of(rows(array, -1), target, some))
    assert abs(p.gap) <= 1e-9 * p.dual


@pytest.mark.parametrize(("weighted", "kernel"), WAYS)
@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_numbers_of_small_problems_with_ties_and_corners(seed, weighted, kernel):
    vectors, weights, target = random_problem(seed + weighted)
    p = gs.solve(vectors, target, weights=weights, kernel=kernel)
    truth = truth_of(vectors, target, weights)
    agree(p, truth)
    if truth.kind == "jump":
        assert p.gap > 1e-9 * p.dual
    else:
        assert abs(p.gap) <= 1e-9 * p.dual


@pytest.mark.parametrize("kernel", KERNELS)
def test_primal_is_that_of_the_value(kernel):
    array = np.random.default_rng(1).normal(size=(9, 40))
    for target in (0.1, 0.7, 0.95):
        p = gs.solve(array, target, kernel=kernel)
        assert p.primal == pytest.approx(np.linalg.norm(p.value, axis=1).sum(), rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_weak_duality(weighted):
    """No feasible point has more than the dual value, wherever it comes from."""
    rng = np.random.default_rng(2)
    array = np.abs(rng.normal(size=(5, 6)))
    weights = rng.integers(1, 4, 6).astype(float) if weighted else np.ones(6)
    p = gs.solve(array, 0.7, weights=weights)
    feasible = 0
    for _ in range(2000):
        x = rng.random((5, 6)) ** rng.uniform(1, 20)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        if gs.average_hoyer(x, weights=weights) >= 0.7:
            feasible += 1
            assert (x * array).sum() <= p.dual * (1 + 1e-12)
    assert feasible > 100


class TestStatus:
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_feasible(self, kernel):
        p = gs.solve(np.eye(3) + 0.01, 0.2, kernel=kernel)
        assert p.status is Status.FEASIBLE
        assert p.multiplier == 0.0
        assert p.residual > 0.0
        assert "unchanged" in str(p.status)

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_converged(self, kernel):
        p = gs.solve(np.random.default_rng(0).normal(size=(4, 9)), 0.8, kernel=kernel)
        assert p.status is Status.CONVERGED
        assert str(p.status) == p.status.value

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_tie(self, kernel):
        p = gs.solve(np.array([[3.0, 3.0, 1.0]]), 0.9, kernel=kernel)
        assert p.status is Status.TIE
        assert p.gap == pytest.approx(0.0, abs=1e-12)

    @pytest.mark.parametrize("kernel", WEIGHTED_KERNELS)
    def test_corner(self, kernel):
        array, weights = np.array([[4.0, 1.0]]), np.array([2.0, 1.0])
        p = gs.solve(array, 0.9, weights=weights, kernel=kernel)
        assert p.status is Status.CORNER
        truth = oracle.solve([array[0]], 0.9, [weights])
        assert p.gap == pytest.approx(truth.dual - truth.primal, rel=1e-9)

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_where_every_vector_is_one_sparse(self, kernel):
        p = gs.solve(np.random.default_rng(0).normal(size=(4, 9)), 1.0, kernel=kernel)
        assert p.status is Status.CONVERGED
        assert p.hoyer == 1.0
        assert abs(p.gap) <= 1e-12 * p.dual


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_measure_is_that_of_what_is_returned(dtype, kernel):
    array = np.random.default_rng(3).normal(size=(5, 33)).astype(dtype)
    p = gs.solve(array, 0.8, kernel=kernel)
    assert p.hoyer == pytest.approx(oracle.average(rows(p.value, -1)), abs=1e-13)
    assert p.target == 0.8
    assert p.residual == p.hoyer - p.target
    if dtype == "float16":
        assert abs(p.residual) > 1e-7, "rounding to float16 must show"


def test_passes_and_iterations_count():
    array = np.random.default_rng(4).normal(size=(20, 50))
    feasible = gs.solve(array, 0.01, kernel="reference")
    exact = gs.solve(array, 0.9, kernel="reference")
    warm = gs.solve(array, 0.9, start=exact.multiplier, kernel="reference")
    assert feasible.iterations == 0
    assert 1 <= feasible.passes < exact.passes
    assert 1 <= exact.iterations <= 10
    assert warm.iterations <= 2
    assert warm.passes < exact.passes
    for p in (feasible, exact, warm):
        assert type(p.iterations) is int
        assert type(p.passes) is int
        for number in (p.multiplier, p.hoyer, p.target, p.residual, p.primal, p.dual, p.gap):
            assert type(number) is float


def test_vectors_that_do_not_count_add_nothing():
    array = np.random.default_rng(5).normal(size=(3, 8))
    plain = gs.solve(list(array), 0.8)
    more = gs.solve([*array, np.array([100.0])], 0.8)
    assert more.primal == pytest.approx(plain.primal, rel=1e-12)
    assert more.dual == pytest.approx(plain.dual, rel=1e-12)
    with_zero = gs.solve([*array, np.zeros(4)], 0.8)
    truth = oracle.solve([*array, np.zeros(4)], 0.8)
    agree(with_zero, truth)


def test_the_multiplier_scales_with_the_vectors():
    array = np.random.default_rng(6).normal(size=(3, 8))
    plain = gs.solve(array, 0.8)
    for scale in (2.0**-900, 1e-5, 3.0, 2.0**900):
        p = gs.solve(array * scale, 0.8)
        assert p.multiplier == pytest.approx(plain.multiplier * scale, rel=1e-9)
        assert p.primal == pytest.approx(plain.primal * scale, rel=1e-12)
        assert p.dual == pytest.approx(plain.dual * scale, rel=1e-12)


def test_a_certificate_cannot_be_changed():
    p = gs.solve(np.eye(3), 0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.multiplier = 1.0


def test_a_certificate_prints_on_a_line_and_leaves_out_the_data():
    """`prune.project_` returns certificates of whole networks, which consoles print unasked."""
    p = gs.solve(np.random.default_rng(0).normal(size=(20, 30)), 0.8)
    assert p.value.shape == (20, 30)
    assert "value" not in repr(p)
    assert "target met" in repr(p)
    assert "\n" not in repr(p)
