"""Bad input: an error that names the offender, and nothing written."""

from __future__ import annotations

import re

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.errors import InvalidInput, NonFiniteInput, UnsupportedType

GOOD = np.random.default_rng(0).normal(size=(4, 5))
CALLS = [gs.project, gs.solve, gs.project_]
NONFINITE = [np.nan, np.inf, -np.inf]


def refuses(error, *words, call=gs.project, args=(GOOD, 0.5), **options):
    """Assert that the call raises an error whose message has all the words in it."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    for word in words:
        assert re.search(word, str(caught.value)), f"{word!r} not in: {caught.value}"


class TestTarget:
    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("target", [-0.1, 1.0000001, 7, np.nan, np.inf, -np.inf])
    def test_outside_of_zero_to_one(self, target, call):
        array = GOOD.copy()
        refuses(
            InvalidInput, "hoyer", re.escape(str(float(target))), r"\[0, 1\]", call=call,
            args=(array, target),
        )  # fmt: skip
        assert array.tobytes() == GOOD.tobytes()

    @pytest.mark.parametrize("target", [None, "half", "0.5", 1j, [0.5, 0.6], np.array([0.5, 0.6])])
    def test_not_a_number(self, target):
        refuses((TypeError, ValueError), "hoyer", args=(GOOD, target))

    @pytest.mark.parametrize("target", [np.float32(0.5), np.float64(0.5), 1, 0, np.int64(1)])
    def test_any_real_number_will_do(self, target):
        gs.project(GOOD, target)


class TestNonFinite:
    @pytest.mark.parametrize("kernel", ["reference", "numba"])
    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
    @pytest.mark.parametrize("bad", NONFINITE)
    def test_array(self, bad, dtype, kernel):
        array = GOOD.astype(dtype)
        array[2, 3] = bad
        array[3, 1] = np.nan  # the first one is named
        refuses(NonFiniteInput, "vector 2", "index 3", str(bad), args=(array, 0.5), kernel=kernel)

    @pytest.mark.parametrize("kernel", ["reference", "numba"])
    def test_named_by_vector_and_index_for_any_axis(self, kernel):
        array = np.zeros((3, 4, 5))
        array[2, 1, 3] = np.nan
        options = {"args": (array, 0.5), "kernel": kernel}
        refuses(NonFiniteInput, r"vector \(1, 3\), index 2", axis=0, **options)
        refuses(NonFiniteInput, r"vector \(2, 1\), index 3", axis=-1, **options)
        refuses(NonFiniteInput, r"vector 1, index \(2, 3\)", axis=(0, 2), **options)
        refuses(NonFiniteInput, r"index \(2, 1, 3\)", axis=None, **options)

    @pytest.mark.parametrize("kernel", ["reference", "numba"])
    @pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize("start", [None, 0.1])
    def test_at_every_target_and_with_a_start(self, target, start, kernel):
        array = np.array([[1e300, np.nan, 1e-300], [1.0, 0.0, 0.0]])
        refuses(NonFiniteInput, "vector 0", args=(array, target), start=start, kernel=kernel)

    @pytest.mark.parametrize("kernel", ["reference", "numba"])
    def test_far_inside_a_large_array(self, kernel):
        array = np.ones((300, 2000), dtype=np.float32)
        array[211, 1777] = np.inf
        refuses(NonFiniteInput, "vector 211", "index 1777", args=(array, 0.5), kernel=kernel)

    @pytest.mark.parametrize("kernel", ["reference", "numba"])
    def test_infinity_alone_in_its_vector(self, kernel):
        array = np.zeros((2, 3))
        array[1, 0] = -np.inf
        refuses(NonFiniteInput, "vector 1", "index 0", args=(array, 0.9), kernel=kernel)

    def test_containers_name_the_member(self):
        vectors = [np.ones(3), np.ones(4), np.array([1.0, 2.0, np.nan, 4.0])]
        refuses(NonFiniteInput, r"vectors\[2\]", "index 2", "nan", args=(vectors, 0.5))
        keyed = {"one": vectors[0], "other": vectors[2]}
        refuses(NonFiniteInput, "'other'", "index 2", args=(keyed, 0.5))
        long = [np.ones(9000), np.ones(9001)]
        long[1][77] = np.inf
        refuses(NonFiniteInput, r"vectors\[1\]", "index 77", args=(long, 0.5))

    def test_a_vector_of_length_one_is_looked_at_too(self):
        refuses(NonFiniteInput, r"vectors\[1\]", args=([np.ones(3), np.array([np.nan])], 0.5))

    @pytest.mark.parametrize("axis", [0, -1, None])
    @pytest.mark.parametrize("kernel", ["reference", "numba"])
    def test_in_place_writes_nothing(self, axis, kernel):
        array = np.random.default_rng(1).normal(size=(300, 100))
        array[299, 99] = np.nan
        before = array.tobytes()
        options = {"call": gs.project_, "args": (array, 0.9), "axis": axis, "kernel": kernel}
        refuses(NonFiniteInput, **options)
        assert array.tobytes() == before

    def test_in_place_containers_write_nothing(self):
        vectors = [np.array([3.0, 1.0]), np.array([1.0, 2.0, np.inf])]
        refuses(NonFiniteInput, call=gs.project_, args=(vectors, 0.9))
        np.testing.assert_array_equal(vectors[0], [3.0, 1.0])


class TestWeights:
    @pytest.mark.parametrize("bad", [-1.0, -1e-300, np.nan, np.inf])
    def test_negative_or_not_finite(self, bad):
        weights = np.ones(GOOD.shape)
        weights[3, 2] = bad
        refuses(InvalidInput, "weights", r"\(3, 2\)", re.escape(str(bad)), weights=weights)
        refuses(InvalidInput, "weights", "2", re.escape(str(bad)), weights=weights[3])

    def test_all_zero(self):
        weights = np.ones(GOOD.shape)
        weights[1] = 0.0
        refuses(InvalidInput, "weights", "1", "zero", weights=weights)
        refuses(InvalidInput, "weights", "zero", weights=np.zeros(5))

    @pytest.mark.parametrize("shape", [(4,), (6,), (5, 4), (1, 5), (4, 5, 1), ()])
    def test_wrong_shape(self, shape):
        refuses(
            InvalidInput, "weights", re.escape(str(shape)), re.escape(str(GOOD.shape)), r"\(5,\)",
            weights=np.ones(shape),
        )  # fmt: skip

    @pytest.mark.parametrize("dtype", ["complex128", "object", "bool", "U3"])
    def test_wrong_type(self, dtype):
        refuses(TypeError, "weights", weights=np.ones(5).astype(dtype))

    def test_containers(self):
        vectors = [np.ones(3), np.ones(4)]
        for weights in ([np.ones(3)], [np.ones(3)] * 3, {0: np.ones(3)}, np.ones(3)):
            refuses(InvalidInput, "weights", args=(vectors, 0.5), weights=weights)
        refuses(
            InvalidInput, "weights", r"vectors\[1\]", r"\(3,\)", r"\(4,\)", args=(vectors, 0.5),
            weights=[np.ones(3), np.ones(3)],
        )  # fmt: skip
        keyed = {"a": vectors[0], "b": vectors[1]}
        refuses(
            InvalidInput, "weights", args=(keyed, 0.5), weights={"a": np.ones(3), "c": np.ones(4)}
        )

    @pytest.mark.parametrize("call", [gs.project_, gs.solve])
    def test_nothing_is_written(self, call):
        array = GOOD.copy()
        refuses(InvalidInput, call=call, args=(array, 0.9), weights=-np.ones(5))
        assert array.tobytes() == GOOD.tobytes()


class TestTypes:
    @pytest.mark.parametrize("dtype", ["complex128", "complex64", "object", "bool", "U3", "M8[s]"])
    @pytest.mark.parametrize("call", CALLS)
    def test_unsupported_dtypes(self, dtype, call):
        array = np.ones((3, 4), dtype="int64").astype(dtype)
        refuses(TypeError, "vectors", re.escape(str(array.dtype)), call=call, args=(array, 0.5))

    def test_unsupported_members(self):
        vectors = [np.ones(3), np.ones(3, dtype=bool)]
        refuses(UnsupportedType, r"vectors\[1\]", "bool", args=(vectors, 0.5))

    @pytest.mark.parametrize("call", CALLS)
    def test_masked_arrays(self, call):
        array = np.ma.masked_array(GOOD.copy(), mask=GOOD > 1)
        refuses(TypeError, "mask", call=call, args=(array, 0.5))
        np.testing.assert_array_equal(array.data, GOOD)

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("thing", [None, "abc", 3.0, np.float64(3.0), object()])
    def test_things_that_are_no_vectors(self, thing, call):
        refuses((TypeError, ValueError), "vectors", call=call, args=(thing, 0.5))

    @pytest.mark.parametrize("thing", [{1.0, 2.0}, (row for row in GOOD), {"a": 1}.values()])
    def test_collections_that_are_no_list_are_called_by_name(self, thing):
        refuses(TypeError, "vectors", type(thing).__name__, "list, tuple", args=(thing, 0.5))

    def test_ragged_rows_inside_a_member(self):
        refuses((TypeError, ValueError), args=([[[1.0, 2.0], [3.0]], [1.0, 2.0]], 0.5))


class TestNothingToProject:
    @pytest.mark.parametrize("empty", [[], (), {}, np.empty((0, 3)), np.empty((3, 0)), np.empty(0)])
    @pytest.mark.parametrize("call", CALLS)
    def test_empty(self, empty, call):
        refuses(InvalidInput, "empty", "expected", call=call, args=(empty, 0.5))

    def test_empty_member(self):
        refuses(InvalidInput, r"vectors\[1\]", "empty", args=([np.ones(3), np.empty(0)], 0.5))

    @pytest.mark.parametrize("single", [np.ones((3, 1)), [np.ones(1), np.ones(1)], np.ones(1)])
    @pytest.mark.parametrize("call", CALLS)
    def test_only_vectors_of_length_one(self, single, call):
        refuses(InvalidInput, "length 1", "length 2", call=call, args=(single, 0.5))


class TestOptions:
    @pytest.mark.parametrize("axis", [2, -3, (0, 0), (0, -2), (), (0, 5)])
    def test_axis(self, axis):
        refuses(ValueError, "axis", re.escape(repr(axis)), axis=axis)

    @pytest.mark.parametrize("axis", [0.5, "rows"])
    def test_axis_of_a_wrong_type(self, axis):
        refuses((TypeError, ValueError), "axis", axis=axis)

    @pytest.mark.parametrize("start", [np.nan, -1.0, np.inf])
    def test_start(self, start):
        refuses(InvalidInput, "start", str(start), start=start)

    @pytest.mark.parametrize("name", ["tol", "start"])
    @pytest.mark.parametrize("thing", ["0.5", [0.5], np.ones(3), 1j])
    def test_things_that_are_no_numbers(self, thing, name):
        refuses(TypeError, name, "expected a", **{name: thing})

    @pytest.mark.parametrize("tol", [np.nan, -1e-9, np.inf])
    def test_tol(self, tol):
        refuses(InvalidInput, "tol", str(tol), tol=tol)

    def test_kernel(self):
        refuses(InvalidInput, "kernel", "abacus", "reference", kernel="abacus")


class TestInPlace:
    def test_read_only(self):
        array = GOOD.copy()
        array.flags.writeable = False
        refuses(InvalidInput, "read-only", call=gs.project_, args=(array, 0.9))
        assert gs.project(array, 0.9).flags.writeable

    @pytest.mark.parametrize("dtype", ["int64", "int8", "uint16"])
    def test_integers_cannot_hold_the_answer(self, dtype):
        array = np.arange(12).reshape(3, 4).astype(dtype)
        refuses(TypeError, dtype, call=gs.project_, args=(array, 0.9))

    @pytest.mark.parametrize("thing", [[[3.0, 1.0], [1.0, 2.0]], [3.0, 1.0]])
    def test_lists_of_numbers(self, thing):
        refuses((TypeError, ValueError), call=gs.project_, args=(thing, 0.9))
        assert thing in ([[3.0, 1.0], [1.0, 2.0]], [3.0, 1.0])

    def test_memory_that_repeats_itself(self):
        row = np.array([3.0, 1.0, 2.0, 5.0])
        broadcast = np.lib.stride_tricks.as_strided(row, (3, 4), (0, 8), writeable=True)
        windows = np.lib.stride_tricks.as_strided(row, (3, 2), (8, 8), writeable=True)
        for array in (broadcast, windows):
            refuses(InvalidInput, "memory", call=gs.project_, args=(array, 0.9))
            np.testing.assert_array_equal(row, [3.0, 1.0, 2.0, 5.0])
            want = gs.project(array.copy(), 0.9)
            np.testing.assert_allclose(gs.project(array, 0.9), want, atol=1e-15)

    def test_the_same_array_twice_in_a_container(self):
        array = np.array([3.0, 1.0, 2.0])
        refuses(InvalidInput, "memory", call=gs.project_, args=([array, array], 0.9))
        np.testing.assert_array_equal(array, [3.0, 1.0, 2.0])

    def test_read_only_member_leaves_the_others_alone(self):
        vectors = [np.array([3.0, 1.0]), np.array([1.0, 2.0, 4.0])]
        vectors[1].flags.writeable = False
        refuses(InvalidInput, r"vectors\[1\]", "read-only", call=gs.project_, args=(vectors, 0.9))
        np.testing.assert_array_equal(vectors[0], [3.0, 1.0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kernel", ["reference", "numba"])
def test_an_answer_out_of_range_never_becomes_infinite(dtype, kernel):
    # Projecting makes the largest entry larger: it may leave the range of its type.
    top = float(np.finfo(dtype).max)
    array = np.array([[top, top, top, top], [1.0, 1.0, 1.0, 1.0]], dtype=dtype)
    before = array.tobytes()
    message = "range"
    try:
        gs.project_(array, 0.9, kernel=kernel)
    except InvalidInput as error:
        message = str(error)
        unchanged = array.tobytes() == before
    else:
        unchanged = True
    assert "range" in message
    assert unchanged
    assert np.isfinite(array).all()
