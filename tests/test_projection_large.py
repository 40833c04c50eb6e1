"""Problems large enough for the ways of the compiled kernel: samples, scans, pieces, columns.

The oracle answers those of a few ten thousand entries; beyond that the reference kernel does, which
the oracle has checked on everything small.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.errors import NonFiniteInput
from groupsparse.kernels import numba_cpu, numba_parts
from groupsparse.result import Status
from tests import oracle
from tests.agreement import TOLERANCES, check_projection, rows

SHAPES = [(1, 20_011), (5, 4097), (20, 1023), (17, 33, 31)]
MANY = [(4097, 4), (8999, 2)]  # a root of many terms takes the oracle seconds


def sample(shape, dtype="float64", seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def solve(array, target, **options):
    p = gs.solve(array, target, kernel="numba", **options)
    assert p.kernel == "numba"
    return p


@pytest.mark.parametrize(
    ("shape", "target"),
    [*itertools.product(SHAPES, [0.5, 0.95]), *zip(MANY, [0.5, 0.8], strict=True)],
)
def test_against_the_oracle(shape, target):
    array = sample(shape)
    check_projection(rows(array, -1), rows(solve(array, target).value, -1), target)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, (0, 1), None], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_columns_and_blocks_against_the_oracle(order, axis, dtype):
    array = sample((50, 40, 9), dtype).copy(order)
    value = solve(array, 0.8, axis=axis).value
    check_projection(rows(array, axis), rows(value, axis), 0.8, tolerance=TOLERANCES[dtype])


TIES = {
    "ones": np.ones((150, 120)),
    "one long vector of ones": np.ones((1, 70_000)),
    "two values": 1.0 + (sample((300, 70)) > 1.5),
    "small integers": np.round(sample((400, 50)) * 2),
    "small integers in one vector": np.round(sample((1, 22_876), seed=1) * 2),
    "scales": np.ones((60, 300)) * 10.0 ** (np.arange(60)[:, None] % 13),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("target", [0.3, 0.8, 0.99, 1.0])
@pytest.mark.parametrize("name", TIES)
def test_ties(name, target, dtype):
    array = TIES[name].astype(dtype)
    p = solve(array, target)
    tolerance = 1e-10 if dtype == "float64" else 1e-6
    assert abs(oracle_average(p.value) - max(target, oracle_average(array))) <= tolerance
    assert abs(p.gap) <= 1e-9 * p.dual
    reference = gs.solve(array, target, kernel="reference")
    assert p.primal == pytest.approx(reference.primal, rel=10 * tolerance)


@pytest.mark.parametrize("certify", [False, True])
def test_sums_too_small_that_only_the_write_meets(certify, monkeypatch):
    """In float32 nothing may be left of squares so near to a tie: the vectors are rescaled then."""
    monkeypatch.setattr(numba_cpu, "SMALL", 0)
    monkeypatch.setattr(numba_parts, "TASK", 8)
    given = np.array([-1.0, 2.0, -1.0, -2.0], dtype="float32")
    value = given.copy()
    if certify:
        value = solve(value, 0.652534259257168).value
    else:
        gs.project_(value, 0.652534259257168)
    check_projection([given], [value], 0.652534259257168, tolerance=TOLERANCES["float32"])


@pytest.mark.parametrize("target", [0.0, 0.5])
def test_start_where_every_multiplier_up_to_it_is_right(target):
    """Vectors of equal entries, and 1-sparse ones, do not move up to some multiplier."""
    array = np.full((400, 101), 0.7)
    array[: int(400 * target), 1:] = 0.0
    for start in (None, 0.3, 0.5):
        p = solve(array, target, start=start)
        assert p.value.tobytes() == array.tobytes()
        assert (p.multiplier, p.status) == (0.0, Status.FEASIBLE)


def oracle_average(array):
    """Of rows, a few of which may be zero."""
    nonzero = array[array.any(axis=1)]
    zeros = len(array) - len(nonzero)
    return (oracle.average_of_rows(nonzero) * len(nonzero) + zeros) / len(array)


LARGE = {
    "square": (700, 700),
    "long": (3, 140_001),
    "one": (1, 300_007),
    "short": (70_001, 3),
    "pairs": (50_000, 2),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("target", [0.2, 0.6, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("axis", [-1, 0])
def test_against_the_reference(name, target, dtype, axis):
    array = sample(LARGE[name], dtype)
    array = array if axis == -1 else np.ascontiguousarray(array.T)
    p = solve(array, target, axis=axis)
    reference = gs.solve(array, target, axis=axis, kernel="reference")
    assert reference.kernel == "reference"
    assert p.status is reference.status
    tolerance = 1e-10 if dtype == "float64" else 1e-6
    got = oracle_average(p.value if axis == -1 else p.value.T)
    assert abs(got - target) <= tolerance or p.status is Status.FEASIBLE
    # An average within its tolerance leaves the few vectors that are about to become 1-sparse free.
    atol = 1e-6 if dtype == "float64" else 2e-3
    np.testing.assert_allclose(p.value, reference.value, rtol=0, atol=atol)
    assert p.primal == pytest.approx(reference.primal, rel=1e-6 if dtype == "float32" else 1e-10)
    assert p.dual == pytest.approx(reference.dual, rel=1e-6 if dtype == "float32" else 1e-10)


DISTRIBUTIONS = {
    "heavy tails": lambda r, shape: r.standard_cauchy(shape),
    "log normal": lambda r, shape: np.exp(3 * r.normal(size=shape)),
    "mostly zero": lambda r, shape: r.normal(size=shape) * (r.random(shape) < 0.02),
    "uniform": lambda r, shape: r.random(shape),
    "nearly constant": lambda r, shape: 1.0 + 0.01 * r.random(shape),
    "sorted": lambda r, shape: np.sort(r.normal(size=shape), axis=None).reshape(shape),
    "large entries in one corner": lambda r, shape: (
        r.normal(size=shape) * (1.0 + 1e4 * (np.arange(shape[0])[:, None] > shape[0] - 3))
    ),
    "scales 1e-6 to 1e6": lambda r, shape: (
        r.normal(size=shape) * np.geomspace(1e-6, 1e6, shape[0])[:, None]
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("target", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_samples_that_mislead(name, target, dtype):
    array = DISTRIBUTIONS[name](np.random.default_rng(1), (200, 500)).astype(dtype)
    p = solve(array, target)
    got = oracle_average(p.value)
    tolerance = 1e-10 if dtype == "float64" else 1e-6
    if p.status is Status.FEASIBLE:
        assert p.value.tobytes() == array.tobytes()
        assert got >= target - tolerance
    else:
        assert abs(got - target) <= tolerance
    reference = gs.solve(array, target, kernel="reference")
    top = np.abs(array).max(axis=1, keepdims=True) + 1e-300
    atol = 1e-7 if dtype == "float64" else 2e-3
    np.testing.assert_allclose(p.value / top, reference.value / top, rtol=0, atol=atol)
    assert p.gap >= -1e-6 * p.dual


@pytest.mark.parametrize("axis", [-1, 0])
def test_already_sparse_comes_back_bit_for_bit(axis):
    array = sample((300, 200), "float32")
    p = solve(array, 0.05, axis=axis)
    assert p.status is Status.FEASIBLE
    assert p.value.tobytes() == array.tobytes()
    on_the_boundary = gs.average_hoyer(array, axis=axis)
    np.testing.assert_allclose(solve(array, on_the_boundary, axis=axis).value, array, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_start_changes_the_way_not_the_answer(axis, dtype):
    array = sample((300, 200), dtype)
    cold = solve(array, 0.9, axis=axis)
    for factor in (1.0, 0.999, 1.05, 0.3, 3.0, 0.0, 1e-20, 1e20):
        warm = solve(array, 0.9, axis=axis, start=cold.multiplier * factor)
        atol = 1e-10 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(warm.value, cold.value, rtol=0, atol=atol)
        assert abs(warm.residual) <= (1e-10 if dtype == "float64" else 1e-6)


@pytest.mark.parametrize("exponent", [-300, -150, 150, 300])
def test_ranges(exponent):
    array = sample((200, 101)) * 10.0**exponent
    p = solve(array, 0.8)
    assert abs(oracle.average_of_rows(p.value) - 0.8) <= 1e-10


@pytest.mark.parametrize("exponent", [-37, -22, -15, 15, 22, 37])
def test_float32_ranges(exponent):
    array = (np.abs(sample((200, 101))) * 0.5 + 0.1) * 10.0**exponent
    p = solve(array.astype(np.float32), 0.8)
    assert abs(oracle.average_of_rows(p.value) - 0.8) <= 1e-6


def test_ranges_within_one_matrix():
    array = sample((200, 101)) * np.geomspace(1e-300, 1e300, 200)[:, None]
    p = solve(array, 0.8)
    assert abs(oracle.average_of_rows(p.value) - 0.8) <= 1e-10


@pytest.mark.parametrize("at", [(0, 0), (499, 299), (250, 7)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("start", [None, 0.5])
def test_non_finite_entries_are_found_and_nothing_is_written(at, bad, axis, dtype, start):
    array = sample((500, 300), dtype)
    array[at] = bad
    before = array.tobytes()
    vector, index = at if axis == -1 else at[::-1]
    with pytest.raises(NonFiniteInput, match=f"vector {vector}, index {index} is {bad}"):
        gs.project_(array, 0.9, axis=axis, kernel="numba", start=start)
    assert array.tobytes() == before


def test_in_place_and_out_of_place_are_one_answer():
    for axis in (-1, 0):
        array = sample((300, 200), "float32")
        want = solve(array, 0.9, axis=axis).value
        assert gs.project_(array, 0.9, axis=axis, kernel="numba") is array
        np.testing.assert_array_equal(array, want)


def test_the_same_answer_every_time():
    array = sample((900, 700), "float32")
    first = solve(array, 0.9)
    for _ in range(3):
        again = solve(array, 0.9)
        assert again.value.tobytes() == first.value.tobytes()
        assert again.multiplier == first.multiplier


def test_none_chooses_the_compiled_kernel():
    assert gs.solve(sample((300, 200)), 0.9).kernel == "numba"


def test_few_passes_over_the_data():
    # A sample, one scan, the write: Newton's method alone would need about seven passes.
    p = solve(sample((1000, 1000), "float32"), 0.9)
    assert p.passes == 2  # one scan and the write; the sample is a sixteenth of the data
