"""The Triton kernels for weighted vectors against the oracle: on a GPU, or in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import groupsparse as gs
from groupsparse.errors import InvalidInput, NonFiniteInput
from tests.agreement import (
    TOLERANCES,
    check_projection,
    numpy_of,
    rows,
    weight_rows,
)
from tests.on_device import DEVICE

# Where nothing is finite the interpreter warns like NumPy; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def sample(shape, dtype=torch.float64, seed=0):
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return torch.from_numpy(values).to(DEVICE, dtype)


def prices(shape, dtype=torch.float64, seed=1):
    values = np.random.default_rng([seed, *shape]).uniform(0.2, 2.0, size=shape)
    return torch.from_numpy(values).to(DEVICE, dtype)


def double(values):
    return torch.tensor(values, dtype=torch.float64, device=DEVICE)


def check(tensor, weights, target, *, axis=-1, entries=True, **options):
    """Compare an answer with the oracle, and its certificate with the answer."""
    before = tensor.clone()
    p = gs.solve(tensor, target, axis=axis, weights=weights, kernel="triton", **options)
    assert torch.equal(tensor, before), "the input was changed"
    assert p.kernel == "triton"
    assert (p.value.shape, p.value.dtype) == (tensor.shape, tensor.dtype)
    given = weights if isinstance(weights, np.ndarray) else numpy_of(weights)
    check_projection(
        rows(numpy_of(tensor), axis),
        rows(numpy_of(p.value), axis),
        target,
        weight_rows(given, numpy_of(tensor), axis),
        TOLERANCES[str(tensor.dtype).removeprefix("torch.")],
        entries=entries,
    )
    exact = gs.average_hoyer(numpy_of(p.value), axis=axis, weights=given)
    assert p.hoyer == pytest.approx(float(exact), abs=1e-6)
    if p.status is not gs.Status.CORNER:
        assert p.gap == pytest.approx(0.0, abs=2e-5 * max(abs(p.dual), float(tensor.abs().max())))
    return p


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (70, 9), (9, 40), (2, 300)])
def test_dtypes_and_shapes(shape, dtype):
    check(sample(shape, dtype), prices(shape), 0.8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_of_weights(dtype):
    check(sample((5, 20)), prices((5, 20), dtype), 0.7)


@pytest.mark.parametrize("axis", [0, 1, (2, 0), None])
def test_axes(axis):
    x = sample((4, 30, 5))
    check(x, prices(x.shape), 0.7, axis=axis)
    check(x.transpose(0, 2), prices((5, 30, 4)), 0.7, axis=axis)


def test_one_vector_of_weights_is_used_for_all():
    x = sample((6, 4, 5))
    check(x, prices((20,)), 0.8, axis=(1, 2))
    check(x.permute(0, 2, 1), prices((5, 4)), 0.8, axis=(1, 2))
    check(x, prices((6,)), 0.8, axis=0)
    turned = gs.project(x, 0.8, axis=(2, 1), weights=prices((5, 4)), kernel="triton")
    want = gs.project(numpy_of(x), 0.8, axis=(2, 1), weights=numpy_of(prices((5, 4))))
    np.testing.assert_allclose(numpy_of(turned), want, rtol=0, atol=1e-9)


def test_weights_of_other_kinds_are_read():
    x = sample((3, 8))
    check(x, torch.arange(1, 25, device=DEVICE).reshape(3, 8), 0.8)
    check(x, numpy_of(prices((3, 8))), 0.8)
    check(x, prices((8, 3)).t(), 0.8)
    check(x, prices((1, 8)).expand(3, 8), 0.8)


@pytest.mark.parametrize("target", [0, 0.1, 0.5, 0.9, 1])
def test_every_target(target):
    weights = prices((5, 12))
    weights[0, 3] = weights[1, 2:5] = 0.0
    check(sample((5, 12)), weights, target)


def test_zero_vectors_stay_and_count_as_one():
    x = sample((5, 12))
    x[1] = 0
    p = check(x, prices((5, 12)), 0.7)
    assert not p.value[1].any()


@pytest.mark.parametrize("scale", [1e150, 1e-150, 1e300])
def test_scales(scale):
    x, weights = sample((3, 30)), prices((3, 30))
    check(x * scale, weights, 0.8)
    check(x, weights * scale, 0.8)
    check(x * double([1.0, scale, 1 / scale])[:, None] ** 0.5, weights, 0.8)


def test_already_sparse_comes_back_bit_for_bit():
    x = sample((5, 20), torch.float32)
    x[0, 0] = -0.0
    p = gs.solve(x, 0.02, weights=prices((5, 20)), kernel="triton")
    assert p.status is gs.Status.FEASIBLE
    assert torch.equal(p.value, x)
    assert torch.equal(torch.signbit(p.value), torch.signbit(x))
    once = gs.project(x, 0.8, weights=prices((5, 20)), kernel="triton")
    again = gs.project(once, 0.79, weights=prices((5, 20)), kernel="triton")
    assert torch.equal(again, once)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
def test_ties_meet_the_target(kind):
    vectors, weights = [[2, 4, 1], [2, -4, 1], [6, 3, 0]], [[1, 2, 1], [1, 2, 0.25], [2, 1, 1]]
    x, w = (torch.tensor(v, dtype=kind, device=DEVICE) for v in (vectors, weights))
    p = check(x, w, 0.95, entries=False)
    assert p.status is gs.Status.TIE


def test_a_corner_is_left_where_the_total_jumps():
    p = check(double([[4.0, 1.0]]), double([2.0, 1.0]), 0.9)
    assert p.status is gs.Status.CORNER
    np.testing.assert_allclose(numpy_of(p.value), [[0.078, 1.246]], atol=1e-3)


@pytest.mark.parametrize("target", [0.9, 0.96])
def test_only_as_many_corners_move_as_it_takes(target):
    x = double([[4.0, 1.0], [-4.0, 1.0], [4.0, 1.0], [4.0, -1.0], [4.0, 1.0]])
    p = check(x, double([2.0, 1.0]), target, entries=False)
    assert p.status is gs.Status.CORNER
    values = numpy_of(p.value)
    mixed = [(v != 0).all() for v in values]
    assert sum(mixed) == 1
    host = gs.solve(numpy_of(x), target, weights=np.array([2.0, 1.0]))
    np.testing.assert_allclose(values, host.value, rtol=0, atol=1e-9)


def test_ties_and_corners_at_one_jump():
    """At μβ = 3 two entries of the first vector leave together, and the other two move."""
    x = double([[3.0, 6.0, 1.0], [4.0, 1.0, 0.0], [4.0, 1.0, 0.0]])
    weights = double([[1.0, 2.0, 1.0], [2.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    check(x, weights, 0.93, entries=False)
    check(x, weights, 0.99, entries=False)


@pytest.mark.parametrize(
    "bad", [-1.0, float("nan"), float("inf"), 0.0], ids=["negative", "nan", "inf", "all zero"]
)
def test_bad_weights_change_nothing(bad):
    x, weights = sample((4, 9)), prices((4, 9))
    weights[2, :] = bad if bad == 0.0 else weights[2, :]
    weights[2, 5] = bad
    before = x.clone()
    with pytest.raises(InvalidInput, match="weights of vectors: nothing was written"):
        gs.project_(x, 0.8, weights=weights, kernel="triton")
    fine = sample((3, 8))
    found = gs.project_each_([fine, x], 0.8, weights=[prices((8,)), weights], kernel="triton")
    assert [p.status for p in found] == [gs.Status.CONVERGED, gs.Status.BAD_WEIGHTS]
    assert torch.equal(x, before)
    with pytest.raises(InvalidInput, match=r"weights of x have shape \(3,\)"):
        gs.project(x, 0.8, weights=prices((3,)), kernel="triton")


def test_not_finite_changes_nothing_and_is_named():
    bad = sample((4, 9))
    bad[2, 5] = float("nan")
    before = bad.clone()
    with pytest.raises(NonFiniteInput, match="vectors: vector 2, index 5 is nan"):
        gs.project_(bad, 0.8, weights=prices((9,)), kernel="triton")
    assert torch.equal(bad.nan_to_num(), before.nan_to_num())


def test_an_answer_out_of_range_is_refused():
    x = torch.full((1, 4), 60000.0, dtype=torch.float16, device=DEVICE)
    x[0, 1:] = 59000.0
    before = x.clone()
    with pytest.raises(InvalidInput, match="out of the range"):
        gs.project_(x, 0.5, weights=double([1.0, 1.1, 1.0, 1.0]), kernel="triton")
    assert torch.equal(x, before)


def network():
    """Layers in the usual memory formats, with weights of every kind; None stands for ones."""
    layers = [
        sample((8, 3, 3, 3), torch.float32),
        sample((10, 16, 3, 3), torch.float32, 1).to(memory_format=torch.channels_last),
        sample((40, 12), torch.float32, 2).t(),
        sample((13,), torch.float32, 3),
        sample((12, 50), torch.float32, 4)[:, ::2],
    ]
    weights = [prices((3, 3, 3)), prices((10, 16, 3, 3)), None, prices((13,)), prices((25,))]
    return layers, weights


def in_rows(layers, weights):
    """The vectors of all layers and their weights, as the oracle takes them."""
    vectors, beside = [], []
    for x, w in zip(layers, weights, strict=True):
        axes = tuple(range(min(1, x.ndim - 1), x.ndim))
        values = np.ones(x.shape) if w is None else numpy_of(w)
        vectors.append(rows(numpy_of(x), axes))
        beside.append(weight_rows(values, numpy_of(x), axes))
    return vectors, beside


def test_each_tensor_is_its_own_group():
    layers, weights = network()
    before, beside = in_rows(layers, weights)
    targets = [0.6, 0.7, 0.8, 0.9, 0.75]
    found = gs.project_each_(layers, targets, weights=weights, kernel="triton")
    answers, _ = in_rows(layers, weights)
    for p, x, *problem in zip(found, layers, before, answers, targets, beside, strict=True):
        assert (p.kernel, p.status, p.value is x) == ("triton", gs.Status.CONVERGED, True)
        check_projection(*problem, TOLERANCES["float32"])


def test_shared_makes_all_vectors_one_group():
    layers, weights = network()
    before, beside = in_rows(layers, weights)
    [p] = gs.project_each_(layers, 0.8, shared=True, weights=weights, kernel="triton")
    answers, _ = in_rows(layers, weights)
    assert p.hoyer == pytest.approx(0.8, abs=1e-6)
    flat = [[v for layer in some for v in layer] for some in (before, answers, beside)]
    check_projection(flat[0], flat[1], 0.8, flat[2], TOLERANCES["float32"])


def test_a_dict_of_ragged_vectors():
    given = {"a": sample((7,)), "one": sample((1,)), "b": sample((2, 30), seed=1)}
    weights = {"a": prices((7,)), "one": prices((1,)), "b": prices((2, 30))}
    p = gs.solve(given, 0.7, weights=weights, kernel="triton")
    assert torch.equal(p.value["one"], given["one"])
    vectors, answers, beside = (
        [numpy_of(some[key]).ravel() for key in given] for some in (given, p.value, weights)
    )
    check_projection(vectors, answers, 0.7, beside)


def test_starts_save_passes_and_change_nothing():
    x, weights = sample((9, 40)), prices((9, 40))
    first = check(x, weights, 0.8)
    for start in (first, first.multiplier):
        again = check(x, weights, 0.8, start=start)
        assert again.passes < first.passes
    check(x, weights, 0.8, start=100 * first.multiplier)


def test_a_plan_is_used_again_with_other_values():
    x, weights = sample((5, 20)), prices((5, 20))
    plan = gs.Projector([x], weights=[weights])
    for seed in (0, 7):
        x.copy_(sample((5, 20), seed=seed))
        weights.copy_(prices((5, 20), seed=seed))
        want = gs.solve(numpy_of(x), 0.8, weights=numpy_of(weights))
        [p] = plan.project_(0.8)
        assert (p.kernel, p.status) == ("triton", gs.Status.CONVERGED)
        np.testing.assert_allclose(numpy_of(x), want.value, rtol=0, atol=1e-9)
        assert p.multiplier == pytest.approx(want.multiplier, rel=1e-9)
    x.copy_(sample((5, 20), seed=8))
    [q] = plan.project_(0.6)
    assert p.hoyer == q.hoyer == pytest.approx(0.6, abs=1e-9)  # of the plan's latest call


def test_a_plan_copies_weights_that_lie_otherwise():
    x, weights = sample((5, 20)), prices((20, 5))
    plan = gs.Projector([x], weights=[weights.t()])
    plan.project_(0.6)
    weights.copy_(prices((20, 5), seed=3))
    x.copy_(sample((5, 20)))
    plan.project_(0.8)
    want = gs.project(numpy_of(sample((5, 20))), 0.8, weights=numpy_of(weights.t()))
    np.testing.assert_allclose(numpy_of(x), want, rtol=0, atol=1e-9)
