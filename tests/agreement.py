"""What every projection must satisfy: the one comparison with the oracle for all tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests import oracle

Axis = int | tuple[int, ...] | None
KERNELS = ["reference", "numba"]  # that arrays can be given to
WEIGHTED_KERNELS = KERNELS  # those that know weights


@dataclass(frozen=True)
class Tolerance:
    """`average`: of the Hoyer average; `entry`: of an entry, relative to its vector's largest."""

    average: float
    entry: float


# float32: the sums are good to 1e-6; the entries then carry the rounding of the output as well.
# The 16-bit types are computed in float32, so only the rounding of the output is left: half a unit
# in the last place of each entry, which the average feels at most at first order.
TOLERANCES = {
    "float64": Tolerance(1e-10, 1e-8),
    "float32": Tolerance(1e-6, 1e-4),
    "float16": Tolerance(1e-3, 2e-3),
    "bfloat16": Tolerance(1e-2, 1.5e-2),
}


def rows(array: np.ndarray, axis: Axis) -> list[np.ndarray]:
    """The vectors along `axis` as float64 arrays, in C order of the other axes."""
    array = np.asarray(array, dtype=np.float64)
    axes = tuple(range(array.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = tuple(sorted(a % array.ndim for a in axes))
    length = int(np.prod([array.shape[a] for a in axes]))
    moved = np.moveaxis(array, axes, range(array.ndim - len(axes), array.ndim))
    return list(moved.reshape(-1, length))


def weight_rows(weights: np.ndarray, array: np.ndarray, axis: Axis) -> list[np.ndarray]:
    """The same for weights, which may have the shape of the array or of one vector."""
    if weights.shape == array.shape:
        return rows(weights, axis)
    return [np.ravel(weights).astype(float)] * len(rows(array, axis))


def truth_of(
    vectors: Sequence[np.ndarray], target: float, weights: Sequence[np.ndarray] | None = None
) -> oracle.Truth:
    """The oracle's answer, remembered: many kernels and layouts share one problem."""
    key = tuple(np.asarray(v, dtype=np.float64).tobytes() for v in vectors)
    weight_key = weights and tuple(np.asarray(w, dtype=np.float64).tobytes() for w in weights)
    return _remembered(key, float(target), weight_key)


@functools.lru_cache(maxsize=512)
def _remembered(
    key: tuple[bytes, ...], target: float, weight_key: tuple[bytes, ...] | None
) -> oracle.Truth:
    vectors = [np.frombuffer(b) for b in key]
    weights = weight_key and [np.frombuffer(b) for b in weight_key]
    return oracle.solve(vectors, target, weights)


def check_projection(
    vectors: Sequence[np.ndarray],
    answers: Sequence[np.ndarray],
    target: float,
    weights: Sequence[np.ndarray] | None = None,
    tolerance: Tolerance = TOLERANCES["float64"],
    *,
    entries: bool = True,
) -> oracle.Truth:
    """Assert that `answers` is a projection of `vectors`; both as float64 vectors.

    Without `entries` only what the problem asks for is compared: measure, objective and form. Near
    a tie many answers differ by less than rounding in these, and by much in their entries.
    """
    truth = truth_of(vectors, target, weights)
    assert len(answers) == len(vectors)
    for i, (c, z) in enumerate(zip(vectors, answers, strict=True)):
        assert np.isfinite(z).all(), f"vector {i}: {z}"
        if truth.kind == "feasible" or len(c) == 1 or not c.any():
            np.testing.assert_array_equal(z, c, err_msg=f"vector {i} had to stay as it is")
    if truth.kind == "feasible":
        return truth
    _check_average(oracle.average(answers, weights), truth, target, tolerance.average)
    counted = [i for i, c in enumerate(vectors) if len(c) > 1 and c.any()]
    for i in counted:
        c, z = vectors[i], answers[i]
        top = np.abs(c).max()
        assert np.all((z == 0) | (c == 0) | (np.sign(z) == np.sign(c))), f"vector {i}: signs"
        # z = (|c|.x) sign(c) x: its length is its product with c.
        length = np.linalg.norm(z / top)
        along = np.abs(z / top) @ np.abs(c / top)
        np.testing.assert_allclose(length**2, along, rtol=0, atol=2 * tolerance.entry * length)
        if truth.unique and entries:
            want = truth.vectors[i]
            atol = tolerance.entry * max(top, np.abs(want).max())
            np.testing.assert_allclose(z, want, rtol=0, atol=atol, err_msg=f"vector {i}")
    got = sum(_norm(answers[i]) for i in counted)
    # Where corners on zero entries leave nothing, the objective is small against its rounding.
    slack = tolerance.entry * max(truth.dual, sum(np.abs(vectors[i]).max() for i in counted))
    assert got <= truth.dual + slack, f"{got} is above the dual {truth.dual}"
    assert got >= truth.primal - slack, f"{got} is below the optimum {truth.primal}"
    return truth


def _norm(z: np.ndarray) -> float:
    top = float(np.abs(z).max())
    return top * float(np.linalg.norm(z / top)) if top else 0.0


def _check_average(got: float, truth: oracle.Truth, target: float, tolerance: float) -> None:
    assert got >= target - tolerance, f"average {got}, target {target}"
    if abs(truth.average - target) <= 1e-12:  # but where a vector had to vanish altogether
        assert got <= target + tolerance, f"average {got}, target {target}"


def numpy_of(tensor: Any) -> np.ndarray:
    """A tensor (or array) as float64."""
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64)
    return tensor.detach().cpu().double().numpy()
