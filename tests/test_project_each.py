"""project_each_: many tensors, each its own group or all of them one."""

from __future__ import annotations

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.errors import InvalidInput, NonFiniteInput
from tests.agreement import KERNELS, check_projection, rows

SHAPES = [(8, 3, 3, 3), (10, 27), (13,), (5, 4, 2), (6, 1)]


def network():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) * 10.0**i for i, shape in enumerate(SHAPES[:4])]


def filters(tensor):
    return rows(tensor, tuple(range(min(1, tensor.ndim - 1), tensor.ndim)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_tensor_is_its_own_group(kernel):
    tensors, before = network(), network()
    results = gs.project_each_(tensors, 0.8, kernel=kernel)
    assert len(results) == len(tensors)
    for p, tensor, old in zip(results, tensors, before, strict=True):
        assert p.kernel == kernel
        assert p.value is tensor
        assert p.hoyer == pytest.approx(0.8, abs=1e-10)
        check_projection(filters(old), filters(tensor), 0.8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_shared_makes_all_vectors_one_group(kernel):
    tensors, before = network(), network()
    [p] = gs.project_each_(tensors, 0.8, shared=True, kernel=kernel)
    assert p.kernel == kernel
    old = [f for tensor in before for f in filters(tensor)]
    new = [f for tensor in tensors for f in filters(tensor)]
    check_projection(old, new, 0.8)


def test_targets_axes_weights_and_starts_one_per_tensor():
    tensors, before = network(), network()
    rng = np.random.default_rng(1)
    weights = [rng.uniform(0.5, 2, t.shape) for t in tensors]
    targets, axes = [0.7, 0.8, 0.9, 0.95], [0, -1, None, (0, 2)]
    results = gs.project_each_(tensors, targets, axis=axes, weights=weights)
    for p, target, axis, tensor, old, w in zip(
        results, targets, axes, tensors, before, weights, strict=True
    ):
        along = tuple(range(old.ndim)) if axis is None and old.ndim == 1 else axis
        assert p.target == target
        check_projection(rows(old, along), rows(tensor, along), target, rows(w, along))
    again = network()
    warm = gs.project_each_(
        again, targets, axis=axes, weights=weights, start=[p.multiplier for p in results]
    )
    for p, q, a, b in zip(results, warm, tensors, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * np.abs(b).max())
        assert q.iterations <= p.iterations


def test_start_takes_what_the_call_before_returned():
    results = gs.project_each_(network(), 0.8)
    again = network()
    for p in gs.project_each_(again, 0.8, start=results):
        assert p.hoyer == pytest.approx(0.8, abs=1e-10)


def test_dicts_by_name():
    named = {f"layer{i}": t for i, t in enumerate(network())}
    targets = {name: 0.6 + 0.1 * i for i, name in enumerate(named)}
    results = gs.project_each_(named, targets)
    for p, (name, tensor) in zip(results, named.items(), strict=True):
        assert p.target == targets[name]
        assert gs.average_hoyer(np.stack(filters(tensor))) == pytest.approx(p.target, abs=1e-10)


def test_each_equals_project_of_each():
    tensors, before = network(), network()
    gs.project_each_(tensors, 0.8)
    for tensor, old in zip(tensors, before, strict=True):
        want = gs.project(np.array(filters(old)), 0.8).reshape(old.shape)
        np.testing.assert_allclose(tensor, want, rtol=1e-12)


def test_tensors_sparse_enough_stay_bit_for_bit():
    tensors, before = network(), network()
    for p in gs.project_each_(tensors, 0.01):
        assert p.multiplier == 0.0
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor.tobytes() == old.tobytes()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_one_bad_tensor_leaves_all_untouched_and_is_named(at, kernel, shared):
    tensors, before = network(), network()
    for bad in (tensors, before):
        bad[at].flat[-1] = np.nan
    with pytest.raises(NonFiniteInput) as caught:
        gs.project_each_(tensors, 0.9, shared=shared, kernel=kernel)
    assert f"tensors[{at}]" in str(caught.value)
    assert "nan" in str(caught.value)
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor.tobytes() == old.tobytes()


def test_other_bad_tensors_leave_all_untouched_and_are_named():
    def read_only(tensor):
        tensor.flags.writeable = False
        return tensor

    cases = {
        "read-only": lambda t: read_only(t),
        "complex": lambda t: t.astype(complex),
        "int64": lambda t: t.astype(np.int64),
        "empty": lambda t: np.empty((0, 3)),
        "length 1": lambda t: np.ones((4, 1)),
    }
    for word, spoil in cases.items():
        tensors, before = network(), network()
        tensors[2] = spoil(tensors[2])
        with pytest.raises((TypeError, ValueError)) as caught:
            gs.project_each_({f"layer{i}": t for i, t in enumerate(tensors)}, 0.9)
        assert word in str(caught.value)
        assert "layer2" in str(caught.value)
        for i in (0, 1, 3):
            assert tensors[i].tobytes() == before[i].tobytes()


def test_a_tensor_of_single_entries_is_left_alone_in_a_shared_group():
    tensors = [*network(), np.full((6, 1), 3.0)]
    [p] = gs.project_each_(tensors, 0.8, shared=True)
    assert p.hoyer == pytest.approx(0.8, abs=1e-10)
    np.testing.assert_array_equal(tensors[-1], np.full((6, 1), 3.0))


def test_anything_to_iterate_over_is_a_list_of_tensors():
    tensors, want = network(), network()
    found = gs.project_each_((tensor for tensor in tensors), 0.8)
    gs.project_each_(want, 0.8)
    for p, tensor, one in zip(found, tensors, want, strict=True):
        assert p.value is tensor
        assert tensor.tobytes() == one.tobytes()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (np.ones((3, 4)), "single"),
        (3.0, "3.0"),
        ([np.arange(3.0), [1.0, 2.0]], r"tensors\[1\] is a list"),
        ({"a": 1.0}, r"tensors\['a'\] is a float"),
    ],
)
def test_what_are_no_tensors_is_said(given, word):
    with pytest.raises((TypeError, ValueError), match=word):
        gs.project_each_(given, 0.8)


def test_bad_lists_of_options_write_nothing():
    for options in (
        {"hoyer": [0.5, 0.6]},
        {"hoyer": [0.5, 0.6, 0.7, 1.5]},
        {"hoyer": {"layer0": 0.5}},
        {"hoyer": 0.5, "axis": [0, 0]},
        {"hoyer": 0.5, "axis": 3},
        {"hoyer": 0.5, "start": [0.1]},
        {"hoyer": 0.5, "weights": [None, None, -np.ones(13), None]},
        {"hoyer": 0.5, "weights": [None, None]},
        {"hoyer": 0.5, "weights": {"layer0": None}},
        {"hoyer": 0.5, "weights": np.ones(4)},
        {"hoyer": [0.5] * 4, "shared": True},
    ):
        tensors, before = network(), network()
        with pytest.raises((TypeError, ValueError)):
            gs.project_each_(tensors, **options)
        for tensor, old in zip(tensors, before, strict=True):
            assert tensor.tobytes() == old.tobytes()
    with pytest.raises(InvalidInput, match="empty"):
        gs.project_each_([], 0.5)


def test_tensors_that_share_memory_are_refused_and_interleaved_ones_are_not():
    array = np.random.default_rng(0).normal(size=(6, 8))
    before = array.tobytes()
    with pytest.raises(InvalidInput, match="memory"):
        gs.project_each_([array, array[2:]], 0.8)
    with pytest.raises(InvalidInput, match="memory"):
        gs.project_each_([array, array.T], 0.8, shared=True)
    assert array.tobytes() == before
    want = gs.project(array[:, ::2], 0.8), gs.project(array[:, 1::2], 0.8)
    gs.project_each_([array[:, ::2], array[:, 1::2]], 0.8)
    np.testing.assert_allclose(array[:, ::2], want[0], atol=1e-12)
    np.testing.assert_allclose(array[:, 1::2], want[1], atol=1e-12)
