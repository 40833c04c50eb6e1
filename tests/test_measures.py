"""hoyer, average_hoyer and zero_fraction against the oracle's measure."""

from __future__ import annotations

import math

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.errors import InvalidInput
from tests import oracle
from tests.agreement import rows, weight_rows


def test_by_hand():
    assert gs.hoyer([3.0, 4.0, 0.0, 0.0]) == pytest.approx(0.6, abs=1e-15)
    assert gs.hoyer([1.0, 1.0, 1.0]) == pytest.approx(0.0, abs=1e-15)
    assert gs.hoyer([0.0, -2.0, 0.0]) == 1.0
    assert gs.hoyer([0.0, 0.0]) == 1.0
    assert math.isnan(gs.hoyer([5.0]))
    root = math.sqrt(5)
    weighted = gs.hoyer([1.0, 0.0], weights=[2.0, 1.0])
    assert weighted == pytest.approx((root - 2) / (root - 1), abs=1e-15)
    assert gs.hoyer([0.0, 7.0], weights=[2.0, 1.0]) == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, (0, 1), (2, 0), (-1, -2), None], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_axis_as_in_numpy_norm(axis, dtype, order):
    array = np.random.default_rng(0).normal(size=(3, 4, 5)) * 10
    array = array.astype(dtype, order=order)
    got = gs.hoyer(array, axis=axis)
    assert np.shape(got) == np.shape(np.sum(array, axis=axis))
    want = [oracle.hoyer(v) for v in rows(array, axis)]
    np.testing.assert_allclose(np.ravel(got), want, rtol=0, atol=1e-14)
    assert gs.average_hoyer(array, axis=axis) == pytest.approx(np.mean(want), abs=1e-14)


@pytest.mark.parametrize("axis", [0, -1, (0, 2), None], ids=str)
@pytest.mark.parametrize("full", [True, False])
def test_weighted(axis, full):
    rng = np.random.default_rng(1)
    array = rng.normal(size=(3, 4, 5))
    axes = tuple(range(3)) if axis is None else np.atleast_1d(axis)
    weights = rng.integers(0, 4, array.shape if full else [array.shape[a] for a in axes])
    weights.flat[0] = 1
    got = gs.hoyer(array, axis=axis, weights=weights)
    pairs = zip(rows(array, axis), weight_rows(weights, array, axis), strict=True)
    want = [oracle.hoyer(v, w) for v, w in pairs]
    np.testing.assert_allclose(np.ravel(got), want, rtol=0, atol=1e-14)
    average = gs.average_hoyer(array, axis=axis, weights=weights)
    assert average == pytest.approx(np.mean(want), abs=1e-14)


@pytest.mark.parametrize("exponent", [-320, -308, -300, -160, 0, 160, 300, 307])
def test_range(exponent):
    with np.errstate(under="ignore"):
        vector = np.array([3.0, -4.0, 0.5, 0.0, 1.0]) * 10.0 ** (exponent // 2)
        vector = vector * 10.0 ** (exponent - exponent // 2)
    assert gs.hoyer(vector) == pytest.approx(oracle.hoyer(vector), abs=1e-14)
    weights = np.array([1.0, 2.0, 3.0, 4.0, 0.0])
    for scale in (1e-300, 1.0, 1e300):
        got = gs.hoyer(vector, weights=weights * scale)
        assert got == pytest.approx(oracle.hoyer(vector, weights * scale), abs=1e-14)


def test_precision_near_its_ends():
    for vector in (
        np.array([1.0] + [1e-9] * 50),
        np.array([1.0, 1e-200]),
        1.0 + 1e-7 * np.arange(40),
        np.geomspace(1e-12, 1, 1023),
    ):
        assert gs.hoyer(vector) == pytest.approx(oracle.hoyer(vector), abs=1e-14)


def test_containers_skip_vectors_of_length_one_and_count_zeros():
    vectors = [np.array([7.0]), np.zeros(4), np.array([1.0, 1.0]), np.array([[3.0, 4.0], [0, 0]])]
    want = (1.0 + 0.0 + 0.6) / 3
    assert gs.average_hoyer(vectors) == pytest.approx(want, abs=1e-15)
    assert gs.average_hoyer(tuple(vectors)) == pytest.approx(want, abs=1e-15)
    assert gs.average_hoyer(dict(enumerate(vectors))) == pytest.approx(want, abs=1e-15)
    weights = [np.ones(1), np.ones(4), np.array([1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0]])]
    flat = [np.ravel(v) for v in vectors]
    assert gs.average_hoyer(vectors, weights=weights) == pytest.approx(
        oracle.average(flat, [np.ravel(w) for w in weights]), abs=1e-14
    )


def test_zero_fraction():
    assert gs.zero_fraction(np.array([0.0, -0.0, 1e-300, 2.0])) == 0.5
    assert gs.zero_fraction([np.zeros(3), np.ones(1)]) == 0.75
    assert gs.zero_fraction({"a": np.zeros((2, 2), dtype=np.int8)}) == 1.0
    assert gs.zero_fraction(np.eye(4, dtype=np.float32)) == 0.75


def test_the_promise_of_project_can_be_checked_with_our_own_measure():
    array = np.random.default_rng(0).normal(size=(9, 20))
    weights = np.random.default_rng(1).uniform(0.5, 2, 20)
    for target in (0.5, 0.9, 1.0):
        z = gs.project(array, target)
        assert gs.average_hoyer(z) == pytest.approx(target, abs=1e-10)
        z = gs.project(array, target, weights=weights)
        assert gs.average_hoyer(z, weights=weights) == pytest.approx(target, abs=1e-10)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0])])
def test_what_is_not_finite_has_no_measure(bad, weights):
    array = np.array([[1.0, bad], [3.0, 0.0], [0.0, 0.0]])
    want = gs.hoyer(array[1:], weights=weights)
    found = gs.hoyer(array, weights=weights)
    assert np.isnan(found[0])
    np.testing.assert_array_equal(found[1:], want)
    assert np.isnan(gs.average_hoyer(array, weights=weights))


def test_weights_of_containers_belong_to_their_members():
    vectors = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 1.0])}
    for weights in ({"a": np.ones(2)}, [np.ones(2)] * 2, np.ones(2)):
        with pytest.raises(InvalidInput, match="weights"):
            gs.average_hoyer(vectors, weights=weights)


@pytest.mark.parametrize("measure", [gs.hoyer, gs.average_hoyer])
def test_bad_input(measure):
    for empty in (np.empty((0, 3)), np.empty((3, 0))):
        with pytest.raises(InvalidInput, match="empty"):
            measure(empty)
    for bad in (np.ones(3, dtype=bool), np.ones(3, dtype=complex), np.ones(3, dtype=object)):
        with pytest.raises(TypeError, match=str(bad.dtype)):
            measure(bad)
    with pytest.raises(InvalidInput, match="axis"):
        measure(np.ones((2, 2)), axis=2)
    with pytest.raises(InvalidInput, match="weights"):
        measure(np.ones((2, 3)), weights=np.ones(2))
    with pytest.raises(InvalidInput, match="weights"):
        measure(np.ones((2, 3)), weights=-np.ones(3))


@pytest.mark.parametrize("nothing", [[], {}, np.ones((3, 1)), [np.ones(1)]])
def test_averages_need_something_to_count(nothing):
    with pytest.raises(InvalidInput):
        gs.average_hoyer(nothing)


def test_nothing_has_no_fraction_of_zeros():
    for nothing in ([], {}, np.empty(0)):
        with pytest.raises(InvalidInput, match="empty"):
            gs.zero_fraction(nothing)
