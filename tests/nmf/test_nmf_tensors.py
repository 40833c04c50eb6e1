"""Torch tensors in, torch tensors out: the same updates and results, no waiting in between."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import groupsparse as gs
from tests.nmf.problems import noisy, start

pytest.importorskip("sklearn")
pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from groupsparse.nmf import GroupSparseNMF
from groupsparse.nmf.constraints import Target
from groupsparse.nmf.sweeps import sweep
from groupsparse.nmf.sweeps_tensor import sweep_by_rows, sweep_tensor, system_of

WEIGHTS = np.linspace(0.5, 2.0, 40)
EVERY: list[dict[str, Any]] = [
    {},
    {"hoyer_H": 0.6},
    {"hoyer_W": 0.4},
    {"hoyer_W": 0.4, "hoyer_H": 0.5},
    {"hoyer_H": 0.6, "weights_H": WEIGHTS},
    {"hoyer_H": 0.6, "weights_H": np.tile(WEIGHTS, (5, 1)), "per_vector": True},
    {"hoyer_H": 0.6, "per_vector": True},
    {"solver": "ahals"},
    {"solver": "nenmf"},
    {"solver": "l1-ahals", "hoyer_H": 0.6},
    {"solver": "csp", "hoyer_H": 0.6, "max_iter": 10},
    {"solver": "gsp", "hoyer_H": 0.6, "max_iter": 10},
]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def fitted(x: Any, **arguments: Any) -> tuple[GroupSparseNMF, Any]:
    settings = {"max_iter": 25, "tol": 0, "random_state": 0, **arguments}
    model = GroupSparseNMF(5, **settings)
    return model, model.fit_transform(x)


def distance(one: Any, two: Any) -> float:
    """‖one − two‖/‖two‖."""
    one = one.cpu().numpy() if isinstance(one, torch.Tensor) else one
    return float(np.linalg.norm(one - two) / np.linalg.norm(two))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arguments", EVERY)
def test_tensors_give_what_arrays_give(arguments: dict[str, Any], device: str) -> None:
    x = noisy(300)
    model, codes = fitted(torch.from_numpy(x).to(device), **arguments)
    assert isinstance(codes, torch.Tensor)
    assert isinstance(model.components_, torch.Tensor)
    assert codes.device.type == model.components_.device.type == device
    expected, expected_codes = fitted(x, **arguments)
    assert distance(model.components_, expected.components_) < 1e-5
    assert distance(codes, expected_codes) < 1e-5
    assert model.hoyer_H_ == pytest.approx(expected.hoyer_H_, abs=1e-9)
    np.testing.assert_allclose(model.loss_curve_, expected.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arguments", [a for a in EVERY if "solver" not in a])
def test_single_precision_too(arguments: dict[str, Any], device: str) -> None:
    """A few iterations only: what the last digits change grows from one to the next."""
    x = noisy(300).astype(np.float32)
    arguments = {**arguments, "max_iter": 4}
    model, codes = fitted(torch.from_numpy(x).to(device), **arguments)
    assert codes.dtype == model.components_.dtype == torch.float32
    expected, _ = fitted(x, **arguments)
    np.testing.assert_allclose(model.loss_curve_, expected.loss_curve_, atol=1e-5)
    if "hoyer_H" in arguments:
        assert model.hoyer_H_ >= arguments["hoyer_H"] - 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("init", [None, "random", "nndsvd", "nndsvda", "nndsvdar"])
@pytest.mark.parametrize("shape", [(300, 40), (30, 90)])
def test_tensors_start_where_arrays_start(
    init: str | None, shape: tuple[int, int], device: str
) -> None:
    x = noisy(*shape)
    model, _ = fitted(torch.from_numpy(x).to(device), init=init, max_iter=1)
    expected, _ = fitted(x, init=init, max_iter=1)
    assert distance(model.components_, expected.components_) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_codes_of_new_samples(device: str) -> None:
    x = noisy(300)
    tensor = torch.from_numpy(x).to(device)
    model, codes = fitted(tensor)
    expected, _ = fitted(x)
    assert distance(model.transform(tensor), expected.transform(x)) < 1e-5
    back = model.inverse_transform(codes)
    assert isinstance(back, torch.Tensor)
    assert distance(back, x) == pytest.approx(model.loss_curve_[-1], rel=1e-6)


def test_tensors_keep_their_precision_and_are_checked() -> None:
    model, codes = fitted(torch.from_numpy(noisy()).float(), hoyer_H=0.6)
    assert codes.dtype == model.components_.dtype == torch.float32
    assert model.hoyer_H_ == pytest.approx(0.6, abs=1e-6)
    with pytest.raises(gs.InvalidInput, match="Negative values"):
        fitted(-torch.ones(4, 5))
    with pytest.raises(gs.InvalidInput, match="NaN"):
        fitted(torch.full((4, 5), torch.nan))
    with pytest.raises(TypeError, match="complex"):
        fitted(torch.ones(4, 5, dtype=torch.complex64))
    with pytest.raises(gs.InvalidInput, match="expecting 40 features"):
        model.transform(torch.ones(3, 7))
    with pytest.raises(gs.UnsupportedType, match="sparse tensor"):
        fitted(torch.eye(6).to_sparse())
    with pytest.raises(gs.InvalidInput, match=r"X has shape \(0, 4\)"):
        fitted(torch.ones(0, 4))


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_takes_arrays_and_tensors_whatever_it_was_fitted_to(device: str) -> None:
    x = noisy()
    of_array, _ = fitted(x)
    of_tensor, _ = fitted(torch.from_numpy(x).to(device))
    expected = of_array.transform(x)
    there = torch.from_numpy(x).to(device)
    for model in (of_array, of_tensor):
        codes = model.transform(there)
        assert isinstance(codes, torch.Tensor)
        assert distance(codes, expected) < 1e-5
        assert distance(model.transform(x), expected) < 1e-5
        back = model.inverse_transform(codes)
        assert isinstance(back, torch.Tensor)
        assert distance(model.inverse_transform(expected), back.cpu().numpy()) < 1e-5


def test_weights_may_be_tensors() -> None:
    x, weights = torch.from_numpy(noisy()), torch.from_numpy(WEIGHTS).requires_grad_()
    model, _ = fitted(x, hoyer_H=0.6, weights_H=weights)
    expected, _ = fitted(x, hoyer_H=0.6, weights_H=WEIGHTS)
    assert torch.equal(model.components_, expected.components_)


def test_a_start_may_be_given_as_tensors() -> None:
    x = noisy()
    w, h = start(60, 40, 5)
    model = GroupSparseNMF(5, hoyer_H=0.6, init="custom", max_iter=10, tol=0)
    model.fit(x, W=w, H=h)
    expected = model.components_
    w_tensor, h_tensor = torch.from_numpy(w), torch.from_numpy(h).requires_grad_()
    model.fit(torch.from_numpy(x), W=w_tensor, H=h_tensor)
    assert distance(model.components_, expected) < 1e-9
    assert np.array_equal(w_tensor.numpy(), w)  # what was given is not written to


# --- sweeps on a device ---------------------------------------------------------------------------


def problem(r: int, n: int, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    """What a sweep takes, with a row without energy."""
    random = np.random.default_rng([r, n])
    other = random.random((r, 30))
    other[r // 2] = 0 if r > 1 else 1
    arrays = {
        "factor": random.random((r, n)),
        "cross": other @ random.random((30, n)),
        "gram": other @ other.T,
        "shift": 0.1 * random.random(r),
        "gain": 1 + random.random(r),
        "weights": random.random((r, n)),
    }
    return {name: np.ascontiguousarray(array, dtype) for name, array in arrays.items()}


def swept(arrays: dict[str, Any], sweeps: int, delta: float = 0.0) -> tuple[Any, Any]:
    """Factor and minima after the compiled sweeps."""
    factor = arrays["factor"].copy()
    minima = np.empty_like(factor) if delta == 0.0 else None
    rest = {k: v for k, v in arrays.items() if k != "factor"}
    sweep(factor, **rest, sweeps=sweeps, delta=delta, minima=minima)
    return factor, minima


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weights", ["none", "one", "all"])
@pytest.mark.parametrize(("r", "n"), [(1, 1), (7, 130), (50, 361), (130, 33)])
def test_sweeps_by_rows_are_the_compiled_sweeps(r: int, n: int, weights: str, device: str) -> None:
    arrays = problem(r, n)
    arrays["weights"] = {"none": None, "one": arrays["weights"][:1], "all": arrays["weights"]}[
        weights
    ]
    factor, minima = swept(arrays, 3)
    there = {k: v if v is None else torch.from_numpy(v).to(device) for k, v in arrays.items()}
    tensor = there.pop("factor")
    found = torch.empty_like(tensor)
    sweep_by_rows(tensor, system_of(**there), 3, found)
    np.testing.assert_allclose(tensor.cpu().numpy(), factor, atol=1e-11)
    np.testing.assert_allclose(found.cpu().numpy(), minima, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_are_left_by_the_same_rule(device: str) -> None:
    arrays = problem(9, 700)
    arrays["factor"][:, 128:256] *= 1e-3  # this block has further to go than the others
    rest = dict.fromkeys(("shift", "gain", "weights"))
    factor, _ = swept({**arrays, **rest}, 40, delta=0.05)
    free, _ = swept({**arrays, **rest}, 40)
    assert not np.allclose(factor, free, atol=1e-6)  # the rule has an effect
    there = {k: torch.from_numpy(v).to(device) for k, v in arrays.items()}
    tensor, cross, gram = there["factor"], there["cross"], there["gram"]
    ones = gram.new_ones(9)
    system = system_of(cross, gram, 0 * ones, ones, None)
    sweep_tensor(tensor, system, gram.diagonal(), sweeps=40, delta=0.05, block=128, minima=None)
    np.testing.assert_allclose(tensor.cpu().numpy(), factor, atol=1e-11)


INTERPRETED = """
    import numpy as np
    import torch
    from groupsparse.nmf.sweeps_tensor import sweep_by_rows, system_of
    from groupsparse.nmf.sweeps_triton import sweep_by_tiles
    from tests.nmf.test_nmf_tensors import problem

    for r, n, sweeps in ((1, 3, 1), (7, 40, 2), (20, 70, 2)):
        for dtype, near in ((np.float64, 1e-11), (np.float32, 1e-3)):
            for rows in (0, 1, r):
                arrays = {k: torch.from_numpy(v) for k, v in problem(r, n, dtype).items()}
                arrays["weights"] = arrays["weights"][:rows] if rows else None
                one = arrays.pop("factor")
                two = one.clone()
                a, b = torch.empty_like(one), torch.empty_like(one)
                sweep_by_rows(one, system_of(**arrays), sweeps, a)
                sweep_by_tiles(two, system_of(**arrays), sweeps, b)
                torch.testing.assert_close(two, one, atol=near, rtol=near)
                torch.testing.assert_close(b, a, atol=near, rtol=near)
    print("same")
"""


def interpreter() -> bool:
    """Whether Triton's interpreter is there and can count; before 3.9 not with NumPy 2.4."""
    if find_spec("triton") is None:
        return False
    triton = tuple(int(part) for part in version("triton").split(".")[:2])
    return triton >= (3, 9) or np.lib.NumpyVersion(np.__version__) < "2.4.0"


@pytest.mark.skipif(not interpreter(), reason="needs Triton's interpreter")
def test_the_kernel_does_what_the_rows_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERPRETED)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stdout == "same\n", done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("r", "n"), [(1, 1), (49, 361), (100, 5000), (130, 700), (1000, 65)])
def test_the_kernel_on_a_device(r: int, n: int, dtype: Any) -> None:
    from groupsparse.nmf.sweeps_tensor import _sweeper
    from groupsparse.nmf.sweeps_triton import sweep_by_tiles

    arrays = problem(r, n, dtype)
    factor, minima = swept({k: v.astype(np.float64) for k, v in arrays.items()}, 2)
    there = {k: torch.from_numpy(v).cuda() for k, v in arrays.items()}
    tensor = there.pop("factor")
    assert _sweeper(tensor) is sweep_by_tiles
    found = torch.empty_like(tensor)
    sweep_by_tiles(tensor, system_of(**there), 2, found)
    near = 1e-9 if dtype is np.float64 else 1e-3
    assert distance(tensor, factor) < near
    assert distance(found, minima) < near


# --- how often the host waits ---------------------------------------------------------------------


class Waits(TorchDispatchMode):
    """Counts what makes the host wait: numbers that are read, and vectors that are fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.vectors = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.numbers += func is torch.ops.aten._local_scalar_dense.default
        self.vectors += func is torch.ops.aten.cat.default  # see ``arrays.on_host``
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        ({}, 1),  # the error and the norms
        ({"solver": "ahals"}, 1),
        ({"solver": "nenmf"}, 3),  # and the step length of either factor
        ({"hoyer_H": 0.6}, 3),  # and what goes into the thresholds, before and after
        ({"hoyer_H": 0.6, "weights_H": WEIGHTS}, 3),
        ({"hoyer_W": 0.4, "hoyer_H": 0.6}, 5),
        ({"solver": "l1-ahals", "hoyer_H": 0.6}, 2),
    ],
)
def test_the_host_seldom_waits(
    arguments: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The projection aside, which is the core's."""
    monkeypatch.setattr(Target, "project", lambda self, rows, start: (rows, start))
    x = torch.from_numpy(noisy())
    counted = []
    for iterations in (180, 200):  # the first 30 may look twice
        with Waits() as waits:
            fitted(x, max_iter=iterations, init="random", **arguments)
        counted.append((waits.numbers, waits.vectors))
    (numbers, vectors), (more_numbers, more_vectors) = counted
    assert more_numbers == numbers
    assert (more_vectors - vectors) / 20 <= most
    assert more_vectors > vectors, "the count itself must see something"


def test_sweeps_never_wait() -> None:
    there = {k: torch.from_numpy(v) for k, v in problem(9, 300).items()}
    tensor, own = there.pop("factor"), there["gram"].diagonal()
    with Waits() as waits:
        sweep_tensor(tensor, system_of(**there), own, sweeps=5, delta=0.0, block=128, minima=None)
        sweep_tensor(tensor, system_of(**there), own, sweeps=28, delta=0.1, block=128, minima=None)
    assert waits.numbers == waits.vectors == 0
