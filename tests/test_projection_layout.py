"""Axes, layouts, containers and in-place calls: what comes back has the form of the input."""

from __future__ import annotations

import types
from collections import OrderedDict, UserDict, defaultdict

import numpy as np
import pytest

import groupsparse as gs
from tests.agreement import KERNELS, TOLERANCES, check_projection, rows, weight_rows

AXES = [0, 1, 2, 3, -1, -2, (0,), (0, 1), (2, 1), (-1, 0), (0, 2), (1, 2, 3), (3, 0, 1), None]
BASE = np.random.default_rng(7).normal(size=(8, 6, 10, 7))
LAYOUTS = {
    "C": lambda: np.ascontiguousarray(BASE[:4, :3, :5, :]),
    "Fortran": lambda: np.asfortranarray(BASE[:4, :3, :5, :]),
    "strided": lambda: BASE[::2, ::2, ::2, :].copy("K")[:, :, :, ::1],
    "strided view": lambda: np.array(BASE)[::2, ::2, ::2, :],
    "last axis strided": lambda: np.array(BASE)[:4, :3, :5, ::2],
    "negative": lambda: np.array(BASE)[3::-1, :3, 4::-1, ::-1],
    "transposed": lambda: np.array(BASE).transpose(2, 0, 3, 1)[:5, :4, :, :3],
    "transposed strided": lambda: np.array(BASE).transpose(3, 1, 0, 2)[::-2, :, 1::2, ::3],
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_axis_of_any_layout(layout, axis, kernel):
    array = LAYOUTS[layout]()
    p = gs.solve(array, 0.8, axis=axis, kernel=kernel)
    assert p.kernel == kernel
    check_projection(rows(array, axis), rows(p.value, axis), 0.8)


@pytest.mark.parametrize("axis", [0, -1, (2, 1), (3, 0), None], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_in_place(layout, axis, kernel):
    array = LAYOUTS[layout]()
    parent = array.base
    outside = None if parent is None else parent.copy()
    want = gs.project(array, 0.8, axis=axis, kernel=kernel)
    result = gs.project_(array, 0.8, axis=axis, kernel=kernel)
    assert result is array
    np.testing.assert_allclose(array, want, rtol=0, atol=1e-14)
    if outside is not None:  # nothing beside the view was touched
        changed = parent != outside
        array[...] = np.nan
        assert np.isnan(parent[changed]).all()


@pytest.mark.parametrize("axis", [0, -1, (1, 2), None], ids=str)
@pytest.mark.parametrize("layout", ["C", "Fortran", "transposed"])
@pytest.mark.parametrize("form", ["full", "full, other order", "one vector"])
def test_weights_follow_the_axis(layout, axis, form):
    array = LAYOUTS[layout]()
    rng = np.random.default_rng(2)
    if form == "one vector":
        axes = range(4) if axis is None else np.atleast_1d(axis)
        weights = rng.uniform(0.5, 2.0, [array.shape[a] for a in axes])
    else:
        weights = rng.uniform(0.5, 2.0, array.shape)
        if form == "full, other order":
            weights = np.asfortranarray(weights)
    value = gs.project(array, 0.8, axis=axis, weights=weights)
    check_projection(rows(array, axis), rows(value, axis), 0.8, weight_rows(weights, array, axis))


def test_one_vector_of_weights_for_axes_out_of_order():
    # The shape of one vector lists its axes as `axis` does.
    array = np.random.default_rng(3).normal(size=(3, 4, 5))
    weights = np.random.default_rng(4).uniform(0.5, 2.0, (5, 3))
    value = gs.project(array, 0.8, axis=(2, 0), weights=weights)
    full = np.broadcast_to(weights.T[:, None, :], array.shape)
    np.testing.assert_allclose(value, gs.project(array, 0.8, axis=(0, 2), weights=full), atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
def test_memory_order_is_kept(layout, dtype):
    array = (LAYOUTS[layout]() * 10).astype(dtype, order="K")
    for target in (0.0, 0.8):
        value = gs.project(array, target)
        same = np.empty_like(array)  # order K
        assert value.strides == tuple(s // same.itemsize * value.itemsize for s in same.strides)


def test_empty_like_subclass_is_plain_array():
    class Tagged(np.ndarray):
        pass

    array = np.random.default_rng(0).normal(size=(3, 5)).view(Tagged)
    np.testing.assert_allclose(gs.project(array, 0.8), gs.project(np.array(array), 0.8), atol=0)


RAGGED = [np.random.default_rng(i).normal(size=n) for i, n in enumerate([2, 3, 1, 1023, 40, 2])]
RAGGED[4][:] = 0.0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", [0.2, 0.7, 0.95, 1.0])
def test_containers_of_ragged_vectors(target, kernel):
    named = {f"v{i}": v for i, v in enumerate(RAGGED)}
    p = gs.solve(RAGGED, target, kernel=kernel)
    assert p.kernel == kernel
    assert type(p.value) is list
    check_projection(RAGGED, p.value, target)
    in_tuple = gs.project(tuple(RAGGED), target, kernel=kernel)
    assert type(in_tuple) is tuple
    in_dict = gs.project(named, target, kernel=kernel)
    assert type(in_dict) is dict
    assert list(in_dict) == list(named)
    for a, b, c in zip(p.value, in_tuple, in_dict.values(), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_containers_keep_shape_dtype_and_layout_of_each_member():
    rng = np.random.default_rng(9)
    vectors = [
        rng.normal(size=(3, 4)).astype(np.float32),
        np.asfortranarray(rng.normal(size=(5, 2, 3))),
        rng.integers(-9, 9, 14),
        rng.normal(size=20)[::-2],
        rng.normal(size=6).astype(np.float16),
    ]
    value = gs.project(vectors, 0.8)
    for v, z in zip(vectors, value, strict=True):
        assert z.shape == v.shape
        assert z.dtype == (np.float64 if v.dtype.kind == "i" else v.dtype)
        assert z.flags.f_contiguous == np.empty_like(v).flags.f_contiguous
    flat = [np.ravel(v).astype(float) for v in vectors]
    answers = [np.ravel(z).astype(float) for z in value]
    check_projection(flat, answers, 0.8, tolerance=TOLERANCES["float16"])


def test_mappings_of_every_kind_come_back_as_that_kind():
    members = {"b": np.array([3.0, -1.0, 0.5]), "a": np.array([1.0, 2.0, -9.0, 0.1])}
    kinds = [
        OrderedDict(members),
        defaultdict(list, members),
        UserDict(members),
        types.MappingProxyType(members),
    ]
    want = gs.project(members, 0.7)
    for given in kinds:
        found = gs.project(given, 0.7)
        assert type(found) is type(given)
        assert list(found) == ["b", "a"]
        for key in members:
            np.testing.assert_array_equal(found[key], want[key])
            np.testing.assert_array_equal(given[key], members[key])
    assert gs.project(kinds[1], 0.7)["new"] == []  # it still knows its default


def test_weighted_containers():
    rng = np.random.default_rng(10)
    weights = [rng.uniform(0.5, 2, v.shape) for v in RAGGED]
    value = gs.project(RAGGED, 0.8, weights=weights)
    check_projection(RAGGED, value, 0.8, weights)
    keyed = OrderedDict((str(i), v) for i, v in enumerate(RAGGED))
    keyed_weights = {str(i): w for i, w in enumerate(weights)}
    by_key = gs.project(keyed, 0.8, weights=keyed_weights)
    for a, b in zip(value, by_key.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_lists_of_numbers_are_vectors():
    value = gs.project([[3.0, 1.0, 0.5], [1.0, 2.0]], 0.9)
    vectors = [np.array([3.0, 1.0, 0.5]), np.array([1.0, 2.0])]
    check_projection(vectors, [np.asarray(z) for z in value], 0.9)


def test_feasible_containers_are_copies():
    value = gs.project(RAGGED, 0.0)
    for v, z in zip(RAGGED, value, strict=True):
        assert z.tobytes() == v.tobytes()
        assert not np.shares_memory(z, v)


def test_vectors_of_length_one_are_left_alone_and_not_counted():
    array = np.random.default_rng(0).normal(size=(4, 9))
    alone = gs.solve(list(array), 0.8)
    with_singles = gs.solve([np.array([5.0]), *array, np.array([-0.0])], 0.8)
    assert with_singles.value[0] == 5.0
    assert np.signbit(with_singles.value[-1]).all()
    for a, b in zip(alone.value, with_singles.value[1:-1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert with_singles.hoyer == pytest.approx(0.8, abs=1e-10)


def test_zero_vectors_stay_zero_and_count_as_one():
    array = np.random.default_rng(0).normal(size=(4, 9))
    array[1] = 0.0
    p = gs.solve(array, 0.8)
    assert not p.value[1].any()
    check_projection(rows(array, -1), rows(p.value, -1), 0.8)
    nothing = gs.solve(np.zeros((3, 4)), 1.0)
    assert not nothing.value.any()
    assert nothing.hoyer == 1.0
