"""The projection of arrays against the oracle: three regimes, shapes, dtypes, kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.result import Status
from tests import oracle
from tests.agreement import KERNELS, TOLERANCES, check_projection, rows, weight_rows

SHAPES = [(1, 2), (2, 2), (3, 3), (40, 25), (1, 1023), (1023, 3), (3, 4097)]
DTYPES = ["float64", "float32", "float16", "int64", "int32", "int8", "uint8"]


def sample(shape, dtype="float64", seed=0):
    """Normal entries; integers are spread over a small range, so that they tie."""
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-100 if np.dtype(dtype).kind == "i" else 0, 100, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def check(array, target, *, axis=-1, weights=None, **options):
    """Solve, and compare with the oracle; returns what `solve` returned."""
    before = array.copy()
    p = gs.solve(array, target, axis=axis, weights=weights, **options)
    assert np.array_equal(array, before), "the input was changed"
    if "kernel" in options:
        assert p.kernel == options["kernel"]
    expected = np.float64 if array.dtype.kind in "iu" else array.dtype
    assert p.value.dtype == expected
    assert p.value.shape == array.shape
    check_projection(
        rows(array, axis),
        rows(p.value, axis),
        target,
        None if weights is None else weight_rows(np.asarray(weights), array, axis),
        TOLERANCES[str(p.value.dtype)],
    )
    return p


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
class TestThreeRegimes:
    def test_already_sparse_comes_back_bit_for_bit(self, shape, kernel):
        array = sample(shape)
        array[0, 0] = -0.0
        target = max(oracle.average(rows(array, -1)) - 0.02, 0.0)
        p = check(array, target, kernel=kernel)
        assert p.value.tobytes() == array.tobytes()
        assert p.value is not array
        assert not np.shares_memory(p.value, array)

    def test_on_the_boundary(self, shape, kernel):
        array = sample(shape)
        target = oracle.average(rows(array, -1))
        p = gs.solve(array, target, kernel=kernel)
        np.testing.assert_allclose(p.value, array, rtol=0, atol=1e-9)
        assert p.kernel == kernel

    @pytest.mark.parametrize("target", [0.6, 0.9, 0.99])
    def test_too_dense(self, shape, kernel, target):
        check(sample(shape), target, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1])
def test_every_target(target, kernel):
    check(sample((6, 30)), target, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(1, 5), (7, 2), (20, 31)])
def test_target_one_leaves_the_largest_entry_alone(shape, kernel):
    array = sample(shape)
    value = gs.project(array, 1.0, kernel=kernel)
    largest = np.abs(array) == np.abs(array).max(axis=1, keepdims=True)
    np.testing.assert_array_equal(value, np.where(largest, array, 0.0))


@pytest.mark.parametrize("kernel", KERNELS)
def test_target_zero_changes_nothing(kernel):
    for array in (np.ones((3, 4)), sample((3, 4)), np.full((2, 3), -7e-300)):
        assert gs.project(array, 0, kernel=kernel).tobytes() == array.tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (9, 40), (2, 1023)])
@pytest.mark.parametrize("target", [0.55, 0.9])
def test_dtypes(dtype, shape, target, kernel):
    check(sample(shape, dtype), target, kernel=kernel)


@pytest.mark.parametrize("dtype", [">f8", ">f4", "<f4"])
def test_byte_order_is_kept(dtype):
    array = sample((4, 9)).astype(dtype)
    value = gs.project(array, 0.8)
    assert value.dtype == array.dtype
    tolerance = TOLERANCES["float64" if array.dtype.itemsize == 8 else "float32"]
    check_projection(rows(array, -1), rows(value, -1), 0.8, tolerance=tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
def test_float32_is_met_to_a_millionth_before_rounding(kernel):
    # Rounding moves every entry by at most half a unit of 2**-24, in both directions.
    array = sample((64, 256), "float32")
    for target in (0.5, 0.8, 0.95):
        p = gs.solve(array, target, kernel=kernel)
        assert abs(oracle.average_of_rows(p.value) - target) <= 1e-6
        assert p.kernel == kernel


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("dtype", "missing"), [("float64", 1e-9), ("float32", 3e-6), ("float16", 3e-6)]
)
def test_nearly_sparse_enough_is_not_enough(dtype, missing, kernel):
    # What counts as sparse enough is a matter of the arithmetic, not of the rounding of the output.
    array = sample((9, 40), dtype)
    target = oracle.average(rows(array, -1)) + missing
    p = gs.solve(array, target, kernel=kernel)
    assert p.status is Status.CONVERGED
    assert p.multiplier > 0.0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_idempotent(dtype, kernel):
    for target in (0.6, 0.9, 1.0):
        once = gs.project(sample((12, 50), dtype), target, kernel=kernel)
        twice = gs.project(once, target, kernel=kernel)
        atol = 1e-9 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(twice, once, rtol=0, atol=atol)


@pytest.mark.parametrize("kernel", KERNELS)
def test_same_input_same_output(kernel):
    array = np.round(sample((50, 20)))
    first = gs.project(array, 0.97, kernel=kernel)
    for _ in range(3):
        assert gs.project(array, 0.97, kernel=kernel).tobytes() == first.tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_signs_permutations_and_scale_pass_through(kernel):
    array = sample((9, 33))
    rng = np.random.default_rng(1)
    plain = gs.project(array, 0.85, kernel=kernel)
    signs = rng.choice([-1.0, 1.0], array.shape)
    np.testing.assert_array_equal(gs.project(array * signs, 0.85, kernel=kernel), plain * signs)
    order = rng.permutation(33)
    shuffled = gs.project(array[:, order], 0.85, kernel=kernel)
    np.testing.assert_allclose(shuffled, plain[:, order], atol=1e-11)
    order = rng.permutation(9)
    np.testing.assert_allclose(
        gs.project(array[order], 0.85, kernel=kernel), plain[order], atol=1e-11
    )
    scaled = gs.project(array * 1e5, 0.85, kernel=kernel)
    np.testing.assert_allclose(scaled, plain * 1e5, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_higher_target_costs_more_and_keeps_less(kernel):
    array = sample((9, 33))
    answers = [gs.solve(array, s, kernel=kernel) for s in np.linspace(0, 1, 21)]
    for before, after in itertools.pairwise(answers):
        assert after.multiplier >= before.multiplier
        assert after.primal <= before.primal * (1 + 1e-13)
        assert gs.zero_fraction(after.value) >= gs.zero_fraction(before.value)


def test_unknown_kernels_are_refused():
    with pytest.raises(gs.errors.InvalidInput, match="abacus"):
        gs.project(np.eye(3), 0.5, kernel="abacus")
