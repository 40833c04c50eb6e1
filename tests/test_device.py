"""The Triton kernels against the oracle: on a GPU, and elsewhere in Triton's interpreter."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import groupsparse as gs
from groupsparse.device import tables
from groupsparse.errors import InvalidInput, NonFiniteInput, UnsupportedType
from tests.agreement import TOLERANCES, check_projection, numpy_of, rows
from tests.on_device import DEVICE, ON_GPU

# Where nothing is finite the interpreter warns like NumPy; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOATS = DTYPES[:2]


def sample(shape, dtype=torch.float32, seed=0):
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return torch.from_numpy(values).to(DEVICE, dtype)


def check(tensor, target, *, axis=-1, entries=True, **options):
    """Compare an answer with the oracle, and its certificate with the answer."""
    before = tensor.clone()
    p = gs.solve(tensor, target, axis=axis, kernel="triton", **options)
    assert torch.equal(tensor, before), "the input was changed"
    assert p.kernel == "triton"
    assert (p.value.shape, p.value.dtype) == (tensor.shape, tensor.dtype)
    tolerance = TOLERANCES[str(tensor.dtype).removeprefix("torch.")]
    check_projection(
        rows(numpy_of(tensor), axis),
        rows(numpy_of(p.value), axis),
        target,
        tolerance=tolerance,
        entries=entries,
    )
    exact = gs.average_hoyer(p.value.double(), axis=axis)
    assert p.hoyer == pytest.approx(float(exact), abs=1e-6)
    assert p.gap == pytest.approx(0.0, abs=2e-5 * max(abs(p.dual), 1e-30))
    return p


# Every kind of tile: rows of up to 16, 64 and 128 entries, longer ones, unaligned ones, split ones.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 2), (70, 9), (33, 40), (20, 120), (9, 200), (3, 1023), (2, 2048), (1, 20001)],
)
def test_dtypes_and_shapes(shape, dtype):
    if not ON_GPU and dtype in DTYPES[2:] and shape[1] > 40:
        pytest.skip("slow, and the interpreter cuts off instead of rounding, which adds up")
    check(sample(shape, dtype), 0.8)


@pytest.mark.parametrize("target", [0, 0.1, 0.3, 0.5, 0.99, 1])
def test_every_target(target):
    check(sample((6, 30)), target)


@pytest.mark.parametrize("axis", [0, 1, (0, 2), None])
def test_axes(axis):
    check(sample((4, 30, 5), torch.float64), 0.7, axis=axis)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "vectors",
    [
        [[3, 3, 1]],
        [[1, 1, 1, 1]] * 6,
        [[5, 5, 1, 0], [4, -4, 4, 1], [9, 1, 1, 1]],
        [[2, 2, -2, 2, 2, 2, 2, 2, 2]] * 3 + [[1, 0, 0, 0, 0, 0, 0, 0, 0]],
    ],
)
def test_ties_meet_the_target(vectors, dtype):
    p = check(torch.tensor(vectors, dtype=dtype, device=DEVICE), 0.9, entries=False)
    assert p.status is gs.Status.TIE


@pytest.mark.parametrize("shape", [(2, 700), (1, 9001)])
def test_ties_of_long_and_split_vectors(shape):
    p = check(torch.ones(shape, device=DEVICE), 0.6, entries=False)
    assert p.status is gs.Status.TIE


def test_zero_vectors_stay_and_count_as_one():
    x = sample((5, 12))
    x[1] = 0
    p = check(x, 0.7)
    assert not p.value[1].any()


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        (torch.float32, [1e37, 1e36, 1e37]),
        (torch.float32, [1e-37, 1e-36, 1e-37]),
        (torch.float32, [1e6, 1.0, 1e-6]),
        (torch.float64, [1e300, 1e299, 1e300]),
        (torch.float64, [1e-300, 1e-299, 1e-300]),
    ],
)
@pytest.mark.parametrize("length", [30, 500])
def test_scales(dtype, scales, length):
    x = sample((3, length), torch.float64)
    x = (x * torch.tensor(scales, dtype=torch.float64, device=DEVICE)[:, None]).to(dtype)
    check(x, 0.8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_already_sparse_comes_back_bit_for_bit(dtype):
    x = sample((5, 20), dtype)
    x[0, 0] = -0.0
    p = gs.solve(x, 0.02, kernel="triton")
    assert p.status is gs.Status.FEASIBLE
    assert torch.equal(p.value, x)
    assert torch.equal(torch.signbit(p.value), torch.signbit(x))
    again = gs.project(gs.project(x, 0.8, kernel="triton"), 0.79, kernel="triton")
    assert torch.equal(again, gs.project(x, 0.8, kernel="triton"))


def network():
    """Layers in all the usual memory formats."""
    layers = [
        sample((8, 3, 3, 3)),
        sample((10, 16, 3, 3), seed=1).to(memory_format=torch.channels_last),
        sample((20, 70), seed=2),
        sample((40, 12), seed=3).t(),
        sample((13,), seed=4),
        sample((12, 50), seed=5)[:, ::2],
    ]
    return [layer * 10.0 ** (i % 3) for i, layer in enumerate(layers[:5])] + layers[5:]


def filters(tensor):
    return rows(numpy_of(tensor), tuple(range(min(1, tensor.ndim - 1), tensor.ndim)))


def test_each_tensor_is_its_own_group():
    tensors, before = network(), network()
    places = [t.data_ptr() for t in tensors]
    targets = [0.6, 0.7, 0.8, 0.85, 0.9, 0.75]
    results = gs.project_each_(tensors, targets, kernel="triton")
    assert places == [t.data_ptr() for t in tensors]
    for p, target, tensor, old in zip(results, targets, tensors, before, strict=True):
        assert (p.kernel, p.status, p.target) == ("triton", gs.Status.CONVERGED, target)
        assert p.value is tensor
        check_projection(filters(old), filters(tensor), target, tolerance=TOLERANCES["float32"])


def test_shared_makes_all_vectors_one_group():
    tensors, before = network(), network()
    [p] = gs.project_each_(tensors, 0.8, shared=True, kernel="triton")
    assert p.value is tensors
    old = [f for tensor in before for f in filters(tensor)]
    new = [f for tensor in tensors for f in filters(tensor)]
    check_projection(old, new, 0.8, tolerance=TOLERANCES["float32"])
    assert p.hoyer == pytest.approx(0.8, abs=1e-6)


def test_starts_save_passes_and_change_nothing():
    first = gs.project_each_(network()[2:], 0.8, kernel="triton")
    for start in (first, [p.multiplier for p in first]):
        tensors = network()[2:]
        again = gs.project_each_(tensors, 0.8, kernel="triton", start=start)
        assert all(q.passes < p.passes for p, q in zip(first, again, strict=True))
        for p, q in zip(first, again, strict=True):
            torch.testing.assert_close(p.value, q.value, rtol=0, atol=1e-6 * float(p.value.max()))


def test_a_dict_of_ragged_vectors():
    given = {"a": sample((7,)), "one": sample((1,)), "b": sample((2, 30), seed=1)}
    p = gs.solve(given, 0.7, kernel="triton")
    assert list(p.value) == list(given)
    assert torch.equal(p.value["one"], given["one"])
    vectors = [numpy_of(x).ravel() for x in given.values()]
    answers = [numpy_of(x).ravel() for x in p.value.values()]
    check_projection(vectors, answers, 0.7, tolerance=TOLERANCES["float32"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("shape", [(4, 9), (4, 700)])
def test_not_finite_changes_nothing_and_is_named(value, shape):
    bad = sample(shape)
    bad[2, 5] = value
    good, before = sample((3, 8)), bad.clone()
    with pytest.raises(NonFiniteInput, match=r"vectors: vector 2, index 5 is (nan|-?inf)"):
        gs.project_(bad, 0.8, kernel="triton")
    fine, refused = gs.project_each_([good, bad], 0.8, kernel="triton")
    assert (fine.status, refused.status) == (gs.Status.CONVERGED, gs.Status.NOT_FINITE)
    [both] = gs.project_each_([sample((3, 8)), bad], 0.8, shared=True, kernel="triton")
    assert both.status is gs.Status.NOT_FINITE
    assert torch.equal(bad.nan_to_num(), before.nan_to_num())


def test_a_vector_of_length_one_that_is_not_finite_stops_everything():
    given = {"a": sample((7,)), "one": torch.tensor([float("nan")], device=DEVICE)}
    before = given["a"].clone()
    with pytest.raises(NonFiniteInput, match=r"vectors\['one'\]: index 0 is nan"):
        gs.project_(given, 0.8, kernel="triton")
    assert torch.equal(given["a"], before)


def test_an_answer_out_of_range_is_refused():
    x = torch.full((1, 4), 60000.0, dtype=torch.float16, device=DEVICE)
    x[0, 1:] = 59000.0
    before = x.clone()
    with pytest.raises(InvalidInput, match="out of the range"):
        gs.project_(x, 0.5, kernel="triton")
    assert torch.equal(x, before)


def test_bad_input():
    x = sample((3, 4))
    with pytest.raises(InvalidInput, match="needs CUDA tensors"):
        gs.project(np.ones((2, 3)), 0.8, kernel="triton")
    with pytest.raises(InvalidInput, match="share memory"):
        gs.project_each_([x, x], 0.8, kernel="triton")
    with pytest.raises(InvalidInput, match="repeats the same memory"):
        gs.project_(x[:1].expand(3, 4), 0.8, kernel="triton")
    with pytest.raises(UnsupportedType, match="dtype"):
        gs.project_(x.to(torch.int64), 0.8, kernel="triton")
    with pytest.raises(InvalidInput, match="only vectors of length 1"):
        gs.project(x[:, :1], 0.8, kernel="triton")
    with pytest.raises(InvalidInput, match="start has 3 members"):
        gs.Projector([x]).project_(0.8, start=[1.0, 2.0, 3.0])
    with pytest.raises(InvalidInput, match="start is nan"):
        gs.Projector([x]).project_(0.8, start=float("nan"))
    assert torch.equal(x, sample((3, 4)))


def test_integers_and_repeated_memory_are_read():
    whole = gs.project(torch.arange(12, device=DEVICE).reshape(3, 4), 0.8, kernel="triton")
    assert whole.dtype == torch.float64
    check(sample((1, 9)).expand(4, 9), 0.8)


def test_a_plan_is_used_again():
    tensors = network()[2:4]
    plan = gs.Projector(tensors, shared=True)
    [p] = plan.project_(0.7)
    assert p.hoyer == pytest.approx(0.7, abs=1e-6)
    first = p.multiplier
    [q] = plan.project_(0.8, start=True)  # of what is projected already
    assert q.hoyer == pytest.approx(0.8, abs=1e-6)
    assert p.multiplier == q.multiplier != first  # certificates of a plan are of its latest call
    assert p.hoyer == q.hoyer
    again = network()[2:4]
    gs.project_each_(again, 0.7, shared=True, kernel="triton")
    [r] = gs.project_each_(again, 0.8, shared=True, kernel="triton")
    for one, other in zip(tensors, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(one.abs().max()))
    assert r.multiplier == pytest.approx(q.multiplier, rel=1e-5)


def test_a_remembered_plan_refuses_shared_memory_every_time():
    tensors = [sample((3, 4)), sample((3, 4), seed=1)]
    gs.project_each_(tensors, 0.5, kernel="triton")
    before = [t.clone() for t in tensors]
    for _ in range(2):
        with pytest.raises(InvalidInput, match="share memory"):
            gs.project_each_([tensors[0], tensors[0]], 0.9, kernel="triton")
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))


def test_a_plan_writes_elsewhere():
    x = sample((5, 40))
    before, out = x.clone(), torch.empty_like(x)
    [p] = gs.Projector([x], outputs=[out]).project_(0.8)
    assert torch.equal(x, before)
    assert p.value is out
    assert torch.equal(out, gs.project(x, 0.8, kernel="triton"))


def test_the_same_input_gives_the_same_bits():
    shape = (4000, 900) if ON_GPU else (10, 90)
    one, two = (gs.project(sample(shape), 0.8, kernel="triton") for _ in range(2))
    assert torch.equal(one, two)


def test_shares_cover_every_unit_once():
    """Every vector, or step of a split vector, is walked by exactly one program."""
    shapes = [tables.Shape(n, m, 1, m, 1, 4, False) for n, m in [(64, 27), (500, 576), (1, 90001)]]
    shapes.append(tables.Shape(300, 40, 300, 1, 300, 4, False))
    for programs in (1, 7, 300):
        made = tables.build(shapes, [1] * 4, [(0, 0)] * 4, [0, 0, 1, 1], programs)
        assert sorted(made.programs) == list(made.programs)
        assert made.programs[-1] == len(made.segments)
        # Each program reports once for a group that it walks whole vectors of, each split once.
        owners = np.repeat(np.arange(len(made.programs) - 1), np.diff(made.programs))
        for group, (_, _, _, expected) in enumerate(made.groups.tolist()):
            whole = (made.segments[:, 1] == group) & (made.segments[:, 2] != tables.SPLIT)
            splits = sum(row[1] == group for row in made.splits.tolist() if row[4])
            assert expected == len(set(owners[whole])) + splits
            last = made.segments[whole, -1]
            assert last.sum() == expected - splits
            for owner in set(owners[whole]):
                assert made.segments[whole & (owners == owner)][-1, -1] == 1
        for tensor, shape in enumerate(shapes):
            mine = made.segments[made.segments[:, 0] == tensor]
            spans = sorted((first, end) for first, end in mine[:, 3:5].tolist())
            assert spans[0][0] == 0
            assert all(one[1] == two[0] for one, two in pairwise(spans))
            kind = int(mine[0, 2])
            step = tables.TILES[kind]
            blocks = -(-shape.inner // step[0])
            units = -(-shape.length // step[1]) if kind == tables.SPLIT else shape.vectors
            assert spans[-1][1] == (blocks if shape.inner > 1 else units)


@pytest.mark.parametrize(
    ("kind", "passes"), [("normal", 5), ("laplace", 4), ("t", 5), ("scaled rows", 6)]
)
def test_searches_that_begin_on_a_sample(kind, passes):
    """Some of the vectors say where to begin, so that few passes over all of them are needed."""
    rng = np.random.default_rng(3)
    draw = {
        "normal": lambda: rng.normal(size=(90, 100)),
        "laplace": lambda: rng.laplace(size=(90, 100)),
        "t": lambda: rng.standard_t(3, size=(90, 100)),
        "scaled rows": lambda: rng.normal(size=(90, 100)) * rng.lognormal(size=(90, 1)),
    }
    x = torch.from_numpy(draw[kind]()).to(DEVICE, torch.float32)
    assert x.nbytes >= tables.SAMPLED_FROM
    p = check(x, 0.8, entries=False)
    assert p.passes <= passes


def test_a_shared_group_that_begins_on_a_sample():
    tensors = [sample((90, 60)), 0.1 * sample((40, 100), seed=1)]
    before = [t.clone() for t in tensors]
    [p] = gs.project_each_(tensors, 0.8, shared=True, kernel="triton")
    vectors, answers = ([f for t in some for f in filters(t)] for some in (before, tensors))
    check_projection(vectors, answers, 0.8, tolerance=TOLERANCES["float32"])
    assert p.passes <= 5
