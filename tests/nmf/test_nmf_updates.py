"""One update at a time, against solvers that know nothing of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

import groupsparse as gs
from groupsparse.nmf import constraints
from groupsparse.nmf.constraints import Target
from groupsparse.nmf.samples import extrapolated
from groupsparse.nmf.sweeps import sweep
from groupsparse.nmf.updates import FastGradient, Hals, PenalisedHals, ShrunkHals
from tests.agreement import TOLERANCES, check_projection


def problem(r: int = 6, n: int = 150, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """A factor, its cross products and Gram matrix, and the data they come from."""
    random = np.random.default_rng(seed)
    other = random.random((r, 30))
    x = random.random((n, 30))
    return random.random((r, n)), other @ x.T, other @ other.T, (x, other)


def objective(factor: np.ndarray, cross: np.ndarray, gram: np.ndarray) -> float:
    return 0.5 * float(np.vdot(gram @ factor, factor)) - float(np.vdot(cross, factor))


@pytest.mark.parametrize("update", [Hals(2000, delta=1e-30), FastGradient(3000)])
def test_free_updates_end_at_nonnegative_least_squares(update: Any) -> None:
    factor, cross, gram, (x, other) = problem()
    answer = update(factor, cross, gram)
    truth = np.array([nnls(other.T, sample)[0] for sample in x]).T
    np.testing.assert_allclose(answer, truth, atol=1e-7)


@pytest.mark.parametrize("r", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sweep_does_what_its_formula_says(r: int, weighted: bool) -> None:
    """Row by row; the compiled loop goes by fours, and the last of them need not be full."""
    factor, cross, gram, _ = problem(r=r, n=300)
    random = np.random.default_rng(1)
    shift, gain, weights = random.random(r), 1 + random.random(r), random.random((r, 300))
    expected, minima = factor.copy(), np.empty_like(factor)
    lowered = weights if weighted else np.ones_like(weights)
    for _ in range(2):
        for k in range(r):
            c = expected[k] + (cross[k] - gram[k] @ expected) / gram[k, k]
            expected[k] = gain[k] * np.maximum(c - shift[k] * lowered[k], 0)
    sweep(
        factor, cross, gram,
        sweeps=2, shift=shift, gain=gain, weights=weights if weighted else None, minima=minima,
    )  # fmt: skip
    np.testing.assert_allclose(factor, expected, atol=1e-12)
    np.testing.assert_allclose(minima[-1], c, atol=1e-12)


def test_sweeps_end_where_nothing_moves_much() -> None:
    """A block is left after the sweep that moves it by less than that share of its first."""
    factor, cross, gram, _ = problem(n=100)
    before, moved, sweeps = factor.copy(), [], 0
    while not moved or moved[-1] > 0.01 * moved[0]:
        after = before.copy()
        sweep(after, cross, gram, sweeps=1)
        moved.append(float(gram.diagonal() @ ((after - before) ** 2).sum(axis=1)))
        before, sweeps = after, sweeps + 1
    assert 1 < sweeps < 100
    sweep(factor, cross, gram, sweeps=100, delta=0.01)
    np.testing.assert_array_equal(factor, before)


def test_sweeps_over_pieces_are_sweeps_over_the_whole() -> None:
    factor, cross, gram, _ = problem(n=500)
    whole = Hals(3)(factor, cross, gram)
    pieces = [Hals(3)(factor[:, s], cross[:, s], gram) for s in (slice(0, 77), slice(77, 500))]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole)


def test_rows_without_energy_are_left_alone() -> None:
    factor, cross, gram, _ = problem()
    gram[2] = gram[:, 2] = cross[2] = 0
    np.testing.assert_array_equal(Hals(1)(factor, cross, gram)[2], factor[2])


@pytest.mark.parametrize("per_vector", [False, True])
@pytest.mark.parametrize("kind", [ShrunkHals, FastGradient])
def test_constrained_updates_meet_the_target(kind: Any, per_vector: bool) -> None:
    factor, cross, gram, _ = problem(seed=3)
    update = kind(4, Target(0.6, per_vector=per_vector))
    each = gs.hoyer(update(factor, cross, gram))
    assert (each.min() if per_vector else each.mean()) == pytest.approx(0.6, abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("start", [0.0, 0.3, 3.0, 1e6])
def test_rows_that_each_meet_the_target_are_projections(
    dtype: type, start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    general = constraints.project_each_

    def spy(rows: Any, *args: Any, **options: Any) -> Any:
        left.append(len(rows))
        return general(rows, *args, **options)

    monkeypatch.setattr(constraints, "project_each_", spy)
    random = np.random.default_rng(7)
    plain = random.random((9, 40))
    plain[1] *= random.random(40) < 0.2  # sparse enough
    plain[2] **= 8
    odd = random.random((5, 40)) * np.array([[1e-160 if dtype == np.float64 else 1e-30]])
    odd[0], odd[1], odd[2, 3:7] = 0.0, 1.0, odd[2].max()
    for rows, hoyer, by_newton in ((plain, 0.6, True), (odd, 0.9, False), (plain, 1.0, False)):
        rows = rows.astype(dtype)
        answer, multipliers = Target(hoyer, per_vector=True).project(rows.copy(), start)
        for before, after, multiplier in zip(rows, answer, multipliers, strict=True):
            check_projection(
                before[None], after[None], hoyer, None, TOLERANCES[np.dtype(dtype).name]
            )
            cut = multiplier / (np.sqrt(len(before)) - 1.0)
            if 1e-6 < cut < before.max() and hoyer < 1.0:
                np.testing.assert_array_equal(after > 0.0, before > dtype(cut))
            if multiplier == 0.0:
                np.testing.assert_array_equal(after, before)
        assert bool(left) != by_newton, "which path ran"
        left.clear()


def test_the_shrunk_update_ends_at_a_stationary_point() -> None:
    """Its fixed point satisfies the optimality conditions of the factor under the constraint."""
    factor, cross, gram, _ = problem(r=4, n=60, seed=5)
    update = ShrunkHals(4, Target(0.55))
    update.trust = 1.0
    for _ in range(3000):
        factor = update(factor, cross, gram)
    gradient = gram @ factor - cross
    norm = np.linalg.norm(factor, axis=1, keepdims=True)
    total = factor.sum(axis=1, keepdims=True)
    # d(‖x‖₁/‖x‖₂)/dx; one multiplier has to balance it on every entry that is not zero.
    bend = (1 - total * factor / norm**2) / norm
    support = factor > 0
    ratio = -(gradient * bend)[support].sum() / (bend[support] ** 2).sum()
    assert ratio > 0
    np.testing.assert_allclose((gradient + ratio * bend)[support], 0, atol=2e-4 * abs(cross).max())
    assert ((gradient + ratio * bend)[~support] > -1e-3 * abs(cross).max()).all()


def test_the_weighted_update_meets_the_weighted_target() -> None:
    factor, cross, gram, _ = problem(seed=4)
    weights = np.random.default_rng(0).random((1, factor.shape[1])) + 0.1
    update = ShrunkHals(4, Target(0.6, weights))
    for _ in range(5):
        factor = update(factor, cross, gram)
    assert gs.average_hoyer(factor, weights=weights[0]) == pytest.approx(0.6, abs=1e-9)


def test_penalties_give_the_fraction_of_zeros() -> None:
    factor, cross, gram, _ = problem(n=200)
    answer = PenalisedHals(1, zeros=0.9)(factor, cross, gram)
    assert ((answer == 0).sum(axis=1) >= 180).all()
    assert ((answer == 0).sum(axis=1) == 180).any()


def test_tensors_are_updated_like_arrays() -> None:
    torch = pytest.importorskip("torch")
    factor, cross, gram, _ = problem()
    tensors = [torch.from_numpy(a) for a in (factor, cross, gram)]
    weights = np.linspace(0.5, 2.0, factor.shape[1])[None]
    for make in (
        lambda: Hals(3),
        lambda: FastGradient(5),
        lambda: ShrunkHals(3, Target(0.6)),
        lambda: ShrunkHals(3, Target(0.6, weights)),
        lambda: ShrunkHals(3, Target(0.6, per_vector=True)),
        lambda: PenalisedHals(1, 0.5),
    ):
        answer = make()(*tensors)
        assert isinstance(answer, torch.Tensor)
        np.testing.assert_allclose(answer.numpy(), make()(factor, cross, gram), atol=1e-8)


def test_extrapolation_goes_further_but_never_below_zero() -> None:
    updated, before = np.array([[3.0, 0.0, 1.0]]), np.array([[1.0, 2.0, 1.0]])
    np.testing.assert_array_equal(extrapolated(updated, before, 0.5), [[4.0, 0.0, 1.0]])
    np.testing.assert_array_equal(updated, [[3.0, 0.0, 1.0]])
    random = np.random.default_rng(0)
    updated, before = random.random((3, 50), np.float32), random.random((3, 50), np.float32)
    ahead = extrapolated(updated, before, 0.7)
    assert ahead.dtype == np.float32
    expected = updated + np.float32(0.7) * (updated - before)
    np.testing.assert_allclose(ahead, expected.clip(min=0), atol=1e-6)
