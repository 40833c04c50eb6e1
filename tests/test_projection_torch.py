"""PyTorch tensors on the CPU against the oracle; what comes back has the form of the input."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import groupsparse as gs  # noqa: E402
from groupsparse.errors import InvalidInput, NonFiniteInput  # noqa: E402
from tests import oracle  # noqa: E402
from tests.agreement import (  # noqa: E402
    TOLERANCES,
    check_projection,
    numpy_of,
    rows,
    weight_rows,
)

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
KERNELS = ["torch", None]


def sample(shape, dtype=torch.float64, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return torch.from_numpy(rng.normal(size=shape)).to(dtype)


def check(tensor, target, *, axis=-1, weights=None, **options):
    before = tensor.clone()
    p = gs.solve(tensor, target, axis=axis, weights=weights, **options)
    assert torch.equal(tensor, before), "the input was changed"
    assert type(p.value) is torch.Tensor
    assert p.value.shape == tensor.shape
    assert p.value.device == tensor.device
    assert p.value.dtype == (tensor.dtype if tensor.is_floating_point() else torch.float64)
    if options.get("kernel"):
        assert p.kernel == options["kernel"]
    check_projection(
        rows(numpy_of(tensor), axis),
        rows(numpy_of(p.value), axis),
        target,
        None if weights is None else weight_rows(numpy_of(weights), numpy_of(tensor), axis),
        TOLERANCES[str(p.value.dtype).removeprefix("torch.")],
    )
    return p


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (9, 40), (2, 1023), (1023, 3), (1, 4097)])
@pytest.mark.parametrize("target", [0.55, 0.9])
def test_dtypes_and_shapes(shape, dtype, target, kernel):
    check(sample(shape, dtype), target, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", [0, 0.1, 0.3, 0.5, 0.7, 0.99, 1])
def test_every_target(target, kernel):
    check(sample((6, 30)), target, kernel=kernel)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integers_become_float64(dtype):
    tensor = torch.arange(40).reshape(4, 10).to(dtype)
    check(tensor, 0.8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_already_sparse_comes_back_bit_for_bit(dtype, kernel):
    tensor = sample((5, 20), dtype)
    tensor[0, 0] = -0.0
    p = gs.solve(tensor, 0.02, kernel=kernel)
    assert torch.equal(p.value, tensor)
    assert torch.equal(torch.signbit(p.value), torch.signbit(tensor))
    assert p.value.data_ptr() != tensor.data_ptr()


LAYOUTS = {
    "contiguous": lambda: sample((4, 3, 5, 6)),
    "channels last": lambda: sample((4, 3, 5, 6)).to(memory_format=torch.channels_last),
    "transposed": lambda: sample((6, 5, 3, 4)).permute(3, 2, 1, 0),
    "strided": lambda: sample((8, 6, 5, 12))[::2, ::2, :, ::2],
    "expanded": lambda: sample((1, 3, 5, 6)).expand(4, 3, 5, 6),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("axis", [0, 1, -1, (1, 2, 3), (3, 0), None], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_axes(layout, axis, kernel):
    tensor = LAYOUTS[layout]()
    p = check(tensor, 0.8, axis=axis, kernel=kernel)
    if layout != "expanded":
        assert p.value.stride() == torch.empty_like(tensor).stride()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed", "strided"])
def test_in_place(layout, dtype, kernel):
    tensor = LAYOUTS[layout]().to(dtype)
    want = gs.project(tensor, 0.8, axis=(1, 2, 3), kernel=kernel)
    version, address = tensor._version, tensor.data_ptr()
    result = gs.project_(tensor, 0.8, axis=(1, 2, 3), kernel=kernel)
    assert result is tensor
    assert tensor.data_ptr() == address
    assert tensor._version > version, "autograd has to learn of the change"
    torch.testing.assert_close(tensor, want, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", [0.3, 0.8, 0.98])
@pytest.mark.parametrize("form", ["tensor", "array", "one vector", "with zeros"])
def test_weights(form, target, kernel):
    tensor = sample((6, 17))
    rng = np.random.default_rng(2)
    weights = torch.from_numpy(rng.uniform(0.2, 3.0, (6, 17)))
    if form == "array":
        weights = weights.numpy()
    elif form == "one vector":
        weights = weights[0].float()
    elif form == "with zeros":
        weights = torch.from_numpy(rng.integers(0, 3, 17))
    check(tensor, target, weights=weights, kernel=kernel)


TIES = {
    "ones": np.ones((4, 6)),
    "small integers": np.random.default_rng(0).integers(-2, 3, (30, 7)).astype(float),
    "authors stop at .434": np.array([[3.0, 3.0, 1.0]]),
    "scales": np.ones((3, 5)) * [[1.0], [1e12], [1e-5]],
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("target", [0.434, 0.6, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("name", TIES)
def test_ties(name, target, kernel):
    check(torch.from_numpy(TIES[name]), target, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("exponent", [-300, -160, 160, 300])
def test_ranges(exponent, kernel):
    check(sample((5, 20)) * 10.0**exponent, 0.8, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("exponent", [-37, -20, 20, 37])
def test_float32_ranges(exponent, kernel):
    tensor = (
        torch.rand((5, 20), generator=torch.Generator().manual_seed(0)) + 0.1
    ) * 10.0**exponent
    check(tensor.float(), 0.8, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_weighted_corners(kernel):
    p = check(torch.tensor([[4.0, 1.0]]).double(), 0.9, weights=np.array([2.0, 1.0]), kernel=kernel)
    assert p.primal == pytest.approx(1.24918683557, abs=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_start(kernel):
    tensor = sample((30, 40))
    cold = gs.solve(tensor, 0.8, kernel=kernel)
    for start in (cold.multiplier, cold.multiplier * 1.01, 0.0, 1e300):
        warm = gs.solve(tensor, 0.8, start=start, kernel=kernel)
        torch.testing.assert_close(warm.value, cold.value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_measure_is_that_of_what_is_returned(dtype, kernel):
    p = gs.solve(sample((5, 33), dtype), 0.8, kernel=kernel)
    assert p.hoyer == pytest.approx(oracle.average(rows(numpy_of(p.value), -1)), abs=1e-7)
    if dtype in (torch.float16, torch.bfloat16):
        assert abs(p.residual) > 1e-7, "rounding must show"


@pytest.mark.parametrize("kernel", KERNELS)
def test_containers(kernel):
    vectors = [sample((n,), seed=n) for n in (2, 3, 40, 1023)]
    p = gs.solve(vectors, 0.8, kernel=kernel)
    check_projection([numpy_of(v) for v in vectors], [numpy_of(z) for z in p.value], 0.8)
    mixed = {"a": sample((3, 4), torch.float32), "b": sample((50,), torch.bfloat16)}
    value = gs.project(mixed, 0.8, kernel=kernel)
    assert value["a"].dtype == torch.float32
    assert value["a"].shape == (3, 4)
    assert value["b"].dtype == torch.bfloat16


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shared", [False, True])
def test_the_parameters_of_a_network(shared, kernel):
    generator = torch.Generator().manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 10), torch.nn.LayerNorm(10)
    )
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    parameters = dict(network.named_parameters())
    before = {name: rows_of_filters(p) for name, p in parameters.items()}
    results = gs.project_each_(parameters, 0.8, shared=shared, kernel=kernel)
    after = {name: rows_of_filters(p) for name, p in parameters.items()}
    tolerance = TOLERANCES["float32"]
    if shared:
        assert len(results) == 1
        vectors = [v for tensor in before.values() for v in tensor]
        answers = [z for tensor in after.values() for z in tensor]
        check_projection(vectors, answers, 0.8, tolerance=tolerance)
    else:
        for name in parameters:
            check_projection(before[name], after[name], 0.8, tolerance=tolerance)
    for parameter in parameters.values():
        assert parameter.is_leaf
        assert parameter.requires_grad


def rows_of_filters(tensor):
    array = numpy_of(tensor)
    return rows(array, tuple(range(min(1, array.ndim - 1), array.ndim)))


class TestBadInput:
    @pytest.mark.parametrize("kernel", KERNELS)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_non_finite_in_place(self, dtype, kernel):
        tensor = sample((4, 5), dtype)
        tensor[2, 3] = float("nan")
        before = tensor.clone()
        with pytest.raises(NonFiniteInput, match=r"vector 2.*index 3.*nan"):
            gs.project_(tensor, 0.9, kernel=kernel)
        assert torch.equal(tensor.nan_to_num(7.0), before.nan_to_num(7.0))

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.bool], ids=str)
    def test_unsupported_dtypes(self, dtype):
        with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
            gs.project(torch.ones(3, 4).to(dtype), 0.5)

    def test_integers_in_place(self):
        with pytest.raises(TypeError, match="int64"):
            gs.project_(torch.arange(12).reshape(3, 4), 0.5)

    def test_sparse_tensors(self):
        with pytest.raises(TypeError):
            gs.project(torch.eye(3).to_sparse(), 0.5)

    def test_repeating_memory_in_place(self):
        tensor = sample((1, 5)).expand(3, 5)
        with pytest.raises(InvalidInput, match="memory"):
            gs.project_(tensor, 0.9)

    @pytest.mark.parametrize("weights", [[], [None, None], [torch.ones(5)] * 3, torch.ones(5)])
    def test_weights_of_containers_belong_to_their_members(self, weights):
        with pytest.raises((TypeError, ValueError), match="weights"):
            gs.project([sample((5,)), sample((5,))], 0.5, weights=weights)

    @pytest.mark.parametrize("options", [{"tol": -1.0}, {"tol": float("nan")}, {"start": -1.0}])
    def test_options_out_of_range(self, options):
        with pytest.raises(InvalidInput, match=next(iter(options))):
            gs.project(sample((4, 5)), 0.5, **options)

    def test_unusable_kernel_is_an_error_not_another_kernel(self):
        with pytest.raises(gs.InvalidInput):
            gs.project(sample((3, 4)), 0.5, kernel="abacus")

    def test_one_bad_tensor_leaves_all_untouched(self):
        tensors = [sample((4, 5)), sample((3, 7), torch.float32), sample((6,), torch.bfloat16)]
        tensors[1][2, 6] = float("inf")
        before = [t.clone() for t in tensors]
        with pytest.raises(NonFiniteInput, match=r"tensors\[1\]"):
            gs.project_each_(tensors, 0.9)
        for tensor, old in zip(tensors, before, strict=True):
            assert torch.equal(tensor, old)


@pytest.mark.parametrize("axis", [0, -1, (0, 2), None], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_measures(axis, dtype):
    tensor = sample((3, 4, 5), dtype)
    got = gs.hoyer(tensor, axis=axis)
    want = [oracle.hoyer(v) for v in rows(numpy_of(tensor), axis)]
    np.testing.assert_allclose(np.ravel(got), want, rtol=0, atol=1e-6)
    assert gs.average_hoyer(tensor, axis=axis) == pytest.approx(np.mean(want), abs=1e-6)
    weights = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)) + 0.1
    got = gs.hoyer(tensor, axis=axis, weights=weights)
    pairs = zip(rows(numpy_of(tensor), axis), rows(numpy_of(weights), axis), strict=True)
    np.testing.assert_allclose(np.ravel(got), [oracle.hoyer(v, w) for v, w in pairs], atol=1e-6)
    assert gs.zero_fraction([tensor, torch.zeros(60)]) == 0.5


def test_what_is_not_finite_has_no_measure():
    tensor = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0], [3.0, 0.0], [0.0, 0.0]])
    assert gs.hoyer(tensor).isnan().tolist() == [True, True, False, False]
    assert gs.hoyer(tensor)[2:].tolist() == [1.0, 1.0]
