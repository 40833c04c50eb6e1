"""Properties of the projection over drawn shapes, values, weights, dtypes and targets."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import groupsparse as gs
from tests import agreement, oracle
from tests.agreement import TOLERANCES, check_projection, rows, weight_rows

KERNELS = st.sampled_from(agreement.KERNELS)
TARGETS = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]), st.floats(0.0, 1.0))
SCALES = st.sampled_from([1.0, 1e-12, 1e12, 1e-300, 1e300, 1e-160, 1e160])


@st.composite
def lattice_vectors(draw, *, least=1, most=6):
    """Ragged vectors of small integers times a scale each: many ties, zeros and signs."""
    sizes = draw(st.lists(st.integers(least, 9), min_size=1, max_size=most))
    scales = [draw(SCALES) if draw(st.booleans()) else 1.0 for _ in sizes]
    integers = [
        draw(hnp.arrays(np.int64, n, elements=st.integers(-4, 4))).astype(float) for n in sizes
    ]
    return [v * s for v, s in zip(integers, scales, strict=True)]


@st.composite
def weights_for(draw, vectors, kernel):
    """Small integers with at least one positive entry for each vector, or no weights."""
    if kernel not in agreement.WEIGHTED_KERNELS or draw(st.booleans()):
        return None
    weights = []
    for v in vectors:
        w = draw(hnp.arrays(np.int64, v.shape, elements=st.integers(0, 3))).astype(float)
        weights.append(w if w.any() else np.ones(v.shape))
    return weights


def countable(vectors):
    return any(len(v) > 1 for v in vectors)


@given(st.data(), TARGETS, KERNELS)
@settings(max_examples=400)
def test_ragged_vectors_with_ties_weights_and_scales(data, target, kernel):
    vectors = data.draw(lattice_vectors().filter(countable))
    weights = data.draw(weights_for(vectors, kernel))
    p = gs.solve(vectors, target, weights=weights, kernel=kernel)
    assert p.kernel == kernel
    truth = check_projection(vectors, p.value, target, weights)
    if truth.kind != "jump":
        assert abs(p.gap) <= 1e-8 * max(np.abs(v).max() for v in vectors) * len(vectors)


@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6),
        # Subnormal float32 numbers have too few digits left to hold an answer.
        elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False),
    ),
    st.data(),
    TARGETS,
    KERNELS,
)
@settings(max_examples=300)
def test_arrays_of_any_floats_along_any_axis(array, data, target, kernel):
    axes = st.one_of(
        st.none(),
        st.integers(-array.ndim, array.ndim - 1),
        st.lists(st.integers(0, array.ndim - 1), min_size=1, unique=True).map(tuple),
    )
    axis = data.draw(axes)
    vectors = rows(array, axis)
    if len(vectors[0]) == 1:
        return
    weights = None
    if kernel in agreement.WEIGHTED_KERNELS and data.draw(st.booleans()):
        weights = data.draw(
            hnp.arrays(np.float64, array.shape, elements=st.floats(0.125, 8.0, width=16))
        )
    p = gs.solve(array, target, axis=axis, weights=weights, kernel=kernel)
    assert p.kernel == kernel
    assert p.value.dtype == array.dtype
    some = None if weights is None else weight_rows(weights, array, axis)
    tolerance = TOLERANCES[str(array.dtype)]
    check_projection(vectors, rows(p.value, axis), target, some, tolerance, entries=False)


@given(st.data(), TARGETS, KERNELS)
def test_smaller_dtypes(data, target, kernel):
    dtype = data.draw(st.sampled_from(["float16", "float32", "int8", "uint16", "int64"]))
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=8))
    low = 0 if dtype.startswith("u") else -20
    integers = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(low, 20)))
    array = integers.astype(dtype)
    p = gs.solve(array, target, kernel=kernel)
    assert p.kernel == kernel
    check_projection(
        rows(array, -1), rows(p.value, -1), target, tolerance=TOLERANCES[str(p.value.dtype)]
    )


@given(st.data(), TARGETS, KERNELS)
def test_in_place_is_the_same(data, target, kernel):
    vectors = data.draw(lattice_vectors().filter(countable))
    weights = data.draw(weights_for(vectors, kernel))
    want = gs.project(vectors, target, weights=weights, kernel=kernel)
    gs.project_(vectors, target, weights=weights, kernel=kernel)
    for a, b in zip(vectors, want, strict=True):
        assert a.tobytes() == b.tobytes()


@given(st.data(), TARGETS, st.floats(0, 1e6), KERNELS)
def test_any_start_meets_the_target(data, target, start, kernel):
    vectors = data.draw(lattice_vectors(least=2).filter(countable))
    weights = data.draw(weights_for(vectors, kernel))
    p = gs.solve(vectors, target, weights=weights, start=start, kernel=kernel)
    check_projection(vectors, p.value, target, weights)


@given(st.data(), TARGETS, KERNELS)
def test_projecting_again_changes_next_to_nothing(data, target, kernel):
    vectors = data.draw(lattice_vectors().filter(countable))
    once = gs.project(vectors, target, kernel=kernel)
    twice = gs.project(once, target, kernel=kernel)
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-7 * np.abs(a).max())


@given(st.data(), st.floats(0, 1), st.floats(0, 1), KERNELS)
def test_objective_and_multiplier_are_monotone_in_the_target(data, one, other, kernel):
    vectors = data.draw(lattice_vectors(least=2).filter(countable))
    low = gs.solve(vectors, min(one, other), kernel=kernel)
    high = gs.solve(vectors, max(one, other), kernel=kernel)
    assert high.primal <= low.primal * (1 + 1e-9)
    assert high.multiplier >= low.multiplier * (1 - 1e-9)


@given(st.data(), KERNELS)
def test_scaling_by_powers_of_two_scales_the_answer(data, kernel):
    vectors = data.draw(lattice_vectors(least=2).filter(countable))
    target = data.draw(TARGETS)
    exponent = data.draw(st.integers(-20, 20))
    plain = gs.project(vectors, target, kernel=kernel)
    scaled = gs.project([v * 2.0**exponent for v in vectors], target, kernel=kernel)
    assert oracle.average(scaled) >= target - 1e-10
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(b, a * 2.0**exponent, rtol=0, atol=1e-7 * np.abs(b).max())


@given(
    hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(-1e9, 1e9)),
    st.data(),
)
def test_measures_agree_with_the_oracle(vector, data):
    assert abs(gs.hoyer(vector) - oracle.hoyer(vector)) <= 1e-13
    weights = data.draw(hnp.arrays(np.float64, vector.shape, elements=st.floats(0, 5)))
    if weights.max() > 1e-3:
        got, want = gs.hoyer(vector, weights=weights), oracle.hoyer(vector, weights)
        assert abs(got - want) <= 1e-13
    assert gs.zero_fraction(vector) == (vector == 0).mean()
