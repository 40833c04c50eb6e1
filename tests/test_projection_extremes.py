"""Ties, ranges, warm starts and two large problems, against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.result import Status
from tests import oracle
from tests.agreement import KERNELS, TOLERANCES, check_projection, rows

pytestmark = pytest.mark.parametrize("kernel", KERNELS)

rng = np.random.default_rng(11)
TIES = {
    "authors stop at .434": [[3.0, 3.0, 1.0]],
    "ones": np.ones((4, 6)),
    "one equal vector": [np.full(7, -2.0)],
    "equal vectors of different scale": np.ones((3, 5)) * [[1.0], [10.0], [1e-5]],
    "equal vectors of different length": [np.ones(2), np.ones(9), 2 * np.ones(30)],
    "equal among others": [np.ones(5), rng.normal(size=9), rng.normal(size=4)],
    "two on top": [[5.0, -5.0, 4.0, 1.0], [2.0, 1.0, 0.5, 0.1]],
    "many on top": [[5.0] * 6 + [1.0] * 6, [3.0] * 3 + [-0.5] * 9, [2.0, 1.0] * 6],
    "all entries 0 or 1": rng.integers(0, 2, (8, 12)),
    "small integers": rng.integers(-2, 3, (30, 7)),
    "neighbouring floats": [[1.0, np.nextafter(1.0, 2.0), 0.5], [1.0, np.nextafter(1.0, 0.0), 0.2]],
    "nearly equal": 1.0 + 1e-15 * rng.integers(0, 5, (3, 8)),
    "equal up to 1e-9": 1.0 + 1e-9 * rng.normal(size=(3, 8)),
}
NEAR_TIES = ["neighbouring floats", "nearly equal", "equal up to 1e-9"]


def floats(vectors):
    return [np.asarray(v, dtype=np.float64) for v in vectors]


def check(vectors, target, kernel, entries=True):
    vectors = floats(vectors)
    p = gs.solve(vectors, target, kernel=kernel)
    assert p.kernel == kernel
    return p, check_projection(vectors, p.value, target, entries=entries)


@pytest.mark.parametrize("target", [0.1, 0.434, 0.6, 0.8, 0.9, 0.97, 0.999, 1.0])
@pytest.mark.parametrize("name", TIES)
def test_ties_meet_the_target_exactly(name, target, kernel):
    check(TIES[name], target, kernel, entries=name not in NEAR_TIES)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ties_in_smaller_types(dtype, kernel):
    array = np.random.default_rng(3).integers(-3, 4, (20, 9)).astype(dtype)
    for target in (0.5, 0.9, 0.99):
        p = gs.solve(array, target, kernel=kernel)
        assert p.kernel == kernel
        check_projection(rows(array, -1), rows(p.value, -1), target, tolerance=TOLERANCES[dtype])


@pytest.mark.parametrize("exponent", [-300, -160, -150, 0, 150, 160, 300])
def test_float64_ranges(exponent, kernel):
    array = np.random.default_rng(5).normal(size=(5, 20))
    for target in (0.3, 0.8, 1.0):
        p, _ = check(array * 10.0**exponent, target, kernel)
        plain = gs.project(array, target, kernel=kernel)
        np.testing.assert_allclose(np.array(p.value) / 10.0**exponent, plain, atol=1e-9)


@pytest.mark.parametrize("exponent", [-300, -160, -150, 150, 160, 300])
@pytest.mark.parametrize("vector", [[1.0, 2.0, 3.0], [1.0001, 1.0002], [5.0, 1.0, 1.0, 1.0]])
def test_short_vectors_out_of_the_range_of_squares(vector, exponent, kernel):
    scaled = np.array(vector) * 10.0**exponent
    for target in (0.5, 0.9, 0.99, 0.999):
        check([scaled], target, kernel)
        check([scaled, np.array([3.0, 1.0, 2.0])], target, kernel)


@pytest.mark.parametrize("exponent", [-37, -30, -20, 20, 30, 37])
def test_float32_ranges(exponent, kernel):
    array = np.random.default_rng(5).uniform(0.1, 1.0, (5, 20)) * 10.0**exponent
    array = array.astype(np.float32)
    for target in (0.3, 0.8, 1.0):
        p = gs.solve(array, target, kernel=kernel)
        assert p.kernel == kernel
        check_projection(
            rows(array, -1), rows(p.value, -1), target, tolerance=TOLERANCES["float32"]
        )


def test_the_smallest_and_the_largest_floats(kernel):
    # The whole answer is representable: its largest entry is at most the norm of the vector.
    check([[1.7e308, 3.0e307, 1.0], [1.0, 2.0, 5e-324]], 0.9, kernel)
    check([[2.0e-323, 5e-324, 5e-324], [1.0, 2.0, 3.0]], 1.0, kernel)
    tiny = np.full((2, 4), 5e-324)
    assert gs.project(tiny, 0.0, kernel=kernel).tobytes() == tiny.tobytes()


def test_ranges_within_one_group(kernel):
    base = np.random.default_rng(6).normal(size=(6, 15))
    for spread in (1e3, 1e12, 1e100, 1e300):
        scaled = base * np.geomspace(1 / np.sqrt(spread), np.sqrt(spread), 6)[:, None]
        for target in (0.4, 0.7, 0.95, 1.0):
            check(scaled, target, kernel)


def test_ranges_within_one_vector(kernel):
    vector = np.geomspace(1e-12, 1.0, 40)
    for target in (0.5, 0.9, 0.99):
        check([vector], target, kernel)
        check([vector * 1e300, vector[::-1].copy() * 1e-300], target, kernel)


def test_float32_scales_twelve_orders_apart(kernel):
    base = np.random.default_rng(6).normal(size=(4, 50))
    array = (base * [[1e-6], [1e6], [1.0], [1e3]]).astype(np.float32)
    for target in (0.4, 0.7, 0.95):
        value = gs.project(array, target, kernel=kernel)
        check_projection(rows(array, -1), rows(value, -1), target, tolerance=TOLERANCES["float32"])


@pytest.mark.parametrize("target", [0.3, 0.8, 0.99])
def test_start_changes_the_way_not_the_answer(target, kernel):
    array = np.random.default_rng(8).normal(size=(30, 40))
    cold = gs.solve(array, target, kernel=kernel)
    good = cold.multiplier
    for start in (good, good * 1.01, good * 0.5, good * 1e3, 0.0, 1e-300, 1e300, np.float32(good)):
        warm = gs.solve(array, target, start=start, kernel=kernel)
        np.testing.assert_allclose(warm.value, cold.value, rtol=0, atol=1e-10)
        assert warm.hoyer == pytest.approx(cold.hoyer, abs=1e-10)


def test_start_with_input_that_is_already_sparse(kernel):
    array = np.random.default_rng(8).normal(size=(30, 40))
    for start in (0.0, 1e-9, 0.5, 1e9):
        p = gs.solve(array, 0.05, start=start, kernel=kernel)
        assert p.value.tobytes() == array.tobytes()
        assert p.multiplier == 0.0


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (np.full((3, 5), 0.7), 0.0),
        (np.array([[2.5060749920168464, 0.0, 0.0]]), 0.0),
        (np.array([[2.3, 2.3, -2.3], [0.0, 0.0, -1.7]]), 0.5),
    ],
)
def test_start_where_every_multiplier_up_to_it_is_right(array, target, kernel):
    for start in (None, 1e-3, 0.30381878028339376, 0.5):
        p = gs.solve(array, target, start=start, kernel=kernel)
        assert p.value.tobytes() == array.tobytes()
        assert (p.multiplier, p.status) == (0.0, Status.FEASIBLE)


def test_start_at_ties(kernel):
    for start in (0.0, 1e-3, 1.0, 2.9999, 3.0, 50.0, 1e300):
        ties = gs.solve([[3.0, 3.0, 1.0], [1.0, 1.0]], 0.9, start=start, kernel=kernel)
        vectors = [np.array([3.0, 3.0, 1.0]), np.ones(2)]
        check_projection(vectors, [np.asarray(z) for z in ties.value], 0.9)


def test_loose_tolerance_is_respected_and_cheaper(kernel):
    array = np.random.default_rng(8).normal(size=(30, 400))
    exact = gs.solve(array, 0.9, kernel=kernel)
    loose = gs.solve(array, 0.9, tol=1e-2, kernel=kernel)
    assert abs(loose.hoyer - 0.9) <= 1e-2
    assert loose.iterations <= exact.iterations


def test_a_million_short_vectors(kernel):
    array = np.random.default_rng(9).normal(size=(1_000_000, 4))
    p = gs.solve(array, 0.7, kernel=kernel)
    assert p.kernel == kernel
    assert abs(oracle.average_of_rows(p.value) - 0.7) <= 1e-10
    assert p.gap <= 1e-9 * p.dual


def test_ten_million_entries_in_one_vector(kernel):
    vector = np.random.default_rng(9).normal(size=10_000_000).astype(np.float32)
    p = gs.solve(vector, 0.8, kernel=kernel)
    assert p.kernel == kernel
    assert abs(oracle.average_of_rows(p.value[None]) - 0.8) <= 1e-6
    assert abs(p.gap) <= 1e-6 * p.dual


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_vector_far_below_the_others(kernel, dtype):
    """Too faint to be squared, and below every threshold that the search looked at."""
    vectors = np.random.default_rng(0).standard_normal((500, 100)).astype(dtype)
    vectors[3] *= 1e-27 if dtype == np.float32 else 1e-170
    p = gs.solve(vectors, 0.8, kernel=kernel)
    assert p.kernel == kernel
    assert p.hoyer == pytest.approx(gs.average_hoyer(p.value), abs=1e-9)
    assert abs(p.residual) < 1e-6
    assert np.count_nonzero(p.value[3]) == 1
