"""The weighted projection against the oracle: smooth roots, ties, corners beyond max c/w."""

from __future__ import annotations

import numpy as np
import pytest

import groupsparse as gs
from tests.agreement import WEIGHTED_KERNELS, check_projection, rows, weight_rows
from tests.test_projection import check, sample

every_kernel = pytest.mark.parametrize("kernel", WEIGHTED_KERNELS)


def check_vectors(vectors, weights, target, kernel, start=None):
    vectors = [np.asarray(v, dtype=np.float64) for v in vectors]
    weights = [np.asarray(w, dtype=np.float64) for w in weights]
    p = gs.solve(vectors, target, weights=weights, kernel=kernel, start=start)
    assert p.kernel == kernel
    return p, check_projection(vectors, p.value, target, weights)


@pytest.mark.parametrize("kernel", WEIGHTED_KERNELS)
@pytest.mark.parametrize("target", [0.3, 0.6, 0.9, 0.98])
@pytest.mark.parametrize("kind", ["uniform", "with zeros", "per entry", "integers", "equal"])
def test_weights(kind, target, kernel):
    array = sample((6, 17), seed=3)
    rng = np.random.default_rng(4)
    weights = {
        "uniform": rng.uniform(0.2, 3.0, 17),
        "with zeros": rng.integers(0, 3, 17).astype(float),
        "per entry": rng.uniform(0.1, 2.0, (6, 17)),
        "integers": rng.integers(1, 4, (6, 17)),
        "equal": np.full(17, 2.5),
    }[kind]
    check(array, target, weights=weights, kernel=kernel)


def test_equal_weights_are_no_weights():
    array = sample((6, 17))
    plain = gs.project(array, 0.8)
    np.testing.assert_allclose(gs.project(array, 0.8, weights=np.full(17, 3.0)), plain, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
def test_weights_of_any_dtype(dtype):
    array = sample((5, 12), dtype)
    weights = np.random.default_rng(1).integers(1, 5, 12)
    for kind in ("float32", "float16", "int8"):
        check(array, 0.8, weights=weights.astype(kind))


WEIGHTED = {
    "design": ([[4.0, 1.0]], [[2.0, 1.0]]),
    "corner on a zero entry": ([[4.0, 0.0]], [[2.0, 1.0]]),
    "corner among three": ([[4.0, 1.0, 0.5]], [[3.0, 2.0, 1.0]]),
    "two jumps": ([[4.0, 1.0], [3.0, 2.0]], [[2.0, 1.0], [5.0, 1.0]]),
    "equal jumps": ([[4.0, 1.0]] * 3, [[2.0, 1.0]] * 3),
    "jump beside a smooth one": ([[4.0, 1.0], [3.0, 2.0, 1.0]], [[2.0, 1.0], [1.0, 1.0, 1.0]]),
    "proportional to the weights": ([[4.0, 2.0, 2.0]], [[2.0, 1.0, 1.0]]),
    "tied quotients": ([[4.0, 2.0, 0.5]], [[2.0, 1.0, 1.0]]),
    "all mass on weight zero": ([[4.0, 0.0, 0.0]], [[0.0, 1.0, 1.0]]),
    "some mass on weight zero": ([[1.0, 4.0, 2.0]], [[0.0, 1.0, 1.0]]),
    "weight zero where c is zero": ([[0.0, 4.0, 2.0]], [[0.0, 1.0, 1.0]]),
    "small weight": ([[1.0, 4.0, 2.0]], [[1e-9, 1.0, 1.0]]),
    "weights far apart": ([[1.0, 4.0, 2.0], [5.0, 3.0]], [[1e-6, 1.0, 1e6], [1e8, 1e-8]]),
    "huge weights": ([[1.0, 4.0, 2.0]], [[1e300, 2e300, 3e300]]),
    "tiny weights": ([[1.0, 4.0, 2.0]], [[1e-300, 2e-300, 3e-300]]),
}


@every_kernel
@pytest.mark.parametrize("target", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted_corners(name, target, kernel):
    vectors, weights = WEIGHTED[name]
    check_vectors(vectors, weights, target, kernel)


@every_kernel
def test_design_example_has_the_known_value(kernel):
    p, truth = check_vectors([[4.0, 1.0]], [[2.0, 1.0]], 0.9, kernel)
    assert truth.kind == "jump"
    assert p.primal == pytest.approx(1.24918683557, abs=1e-10)
    assert p.hoyer == pytest.approx(0.9, abs=1e-12)


@every_kernel
@pytest.mark.parametrize("seed", range(30))
def test_random_weighted_roots_beyond_the_largest_quotient(seed, kernel):
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 7))
    array = random.integers(-5, 6, (int(random.integers(1, 6)), n)).astype(float)
    weights = random.integers(0, 4, array.shape).astype(float)
    weights[~weights.any(axis=1)] = 1.0
    for target in (0.7, 0.9, 0.98):
        check_vectors(array, weights, target, kernel)


@every_kernel
def test_weights_of_shape_of_the_array_and_of_a_vector_agree(kernel):
    array = np.random.default_rng(8).normal(size=(6, 4))
    weights = np.array([1.0, 2.0, 0.0, 3.0])
    short = gs.project(array, 0.9, weights=weights, kernel=kernel)
    full = gs.project(array, 0.9, weights=np.tile(weights, (6, 1)), kernel=kernel)
    np.testing.assert_allclose(short, full, atol=1e-12)
    check_projection(rows(array, -1), rows(short, -1), 0.9, weight_rows(weights, array, -1))


@every_kernel
@pytest.mark.parametrize("name", ["design", "jump beside a smooth one", "tied quotients"])
def test_start_at_ties_and_corners(name, kernel):
    vectors, weights = WEIGHTED[name]
    cold, _ = check_vectors(vectors, weights, 0.9, kernel)
    for start in (0.0, 1e-3, 0.5 * cold.multiplier, cold.multiplier, 2 * cold.multiplier, 1e300):
        warm, _ = check_vectors(vectors, weights, 0.9, kernel, start)
        assert warm.primal == pytest.approx(cold.primal, rel=1e-10)


@every_kernel
def test_a_jump_beside_smooth_vectors_costs_next_to_nothing(kernel):
    # One vector is between two corners while a hundred others can take up the slack.
    array = np.random.default_rng(0).normal(size=(100, 2))
    array[0] = [4.0, 1.0]
    weights = np.ones((100, 2))
    weights[0] = [2.0, 1.0]
    for target in np.linspace(0.6, 0.99, 27):
        check_vectors(array, weights, target, kernel)


@every_kernel
def test_a_large_weighted_array(kernel):
    array = sample((40, 500))
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 500)
    for target in (0.5, 0.9):
        check(array, target, weights=weights, kernel=kernel)
        check(np.asfortranarray(array.T), target, axis=0, weights=weights, kernel=kernel)
