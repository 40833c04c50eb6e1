"""Degenerate data, wrong arguments, interruptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import groupsparse as gs
from tests.nmf.problems import error, exact, noisy, start

pytest.importorskip("sklearn")

from sklearn.exceptions import ConvergenceWarning

from groupsparse.nmf import GroupSparseNMF, alternating

EVERY = [
    {"solver": "auto"},
    {"solver": "ahals"},
    {"solver": "nenmf"},
    {"solver": "auto", "hoyer_H": 0.6},
    {"solver": "auto", "hoyer_H": 0.6, "per_vector": True},
    {"solver": "auto", "hoyer_W": 0.6},
    {"solver": "gsp", "hoyer_H": 0.6},
    {"solver": "csp", "hoyer_H": 0.6},
    {"solver": "l1-ahals", "hoyer_H": 0.6},
]


def fit(x: np.ndarray, r: int = 4, **arguments: Any) -> tuple[GroupSparseNMF, np.ndarray]:
    model = GroupSparseNMF(r, **{"max_iter": 40, "tol": 0, "random_state": 0, **arguments})
    codes = model.fit_transform(x)
    assert np.isfinite(codes).all()
    assert np.isfinite(model.components_).all()
    assert codes.min() >= 0
    assert model.components_.min() >= 0
    assert (np.diff(model.loss_curve_) <= 0).all()
    return model, codes


@pytest.mark.parametrize("arguments", EVERY)
def test_zero_rows_and_columns(arguments: dict[str, Any]) -> None:
    x = noisy()
    x[7] = x[:, 5] = 0
    model, codes = fit(x, **arguments)
    assert error(x, codes, model.components_) < 0.6


@pytest.mark.parametrize("arguments", EVERY)
def test_nothing_but_zeros(arguments: dict[str, Any]) -> None:
    model, _ = fit(np.zeros((12, 9)), **arguments)
    assert model.reconstruction_err_ == 0


@pytest.mark.parametrize("arguments", EVERY)
def test_constant_data(arguments: dict[str, Any]) -> None:
    model, _ = fit(np.ones((20, 16)), **arguments)
    limit = 0.8 if len(arguments) > 1 else 1e-6
    assert model.loss_curve_[-1] < limit


@pytest.mark.parametrize("arguments", EVERY)
def test_a_rank_above_that_of_the_data(arguments: dict[str, Any]) -> None:
    model, _ = fit(exact(30, 20, 2)[0], r=6, **arguments)
    assert model.loss_curve_[-1] < (0.45 if len(arguments) > 1 else 0.05)


@pytest.mark.parametrize("arguments", EVERY[:4])
def test_a_rank_above_the_shape(arguments: dict[str, Any]) -> None:
    _, codes = fit(noisy(8, 6, 3), r=10, **arguments)
    assert codes.shape == (8, 10)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize("arguments", EVERY[:4])
def test_tiny_shapes(shape: tuple[int, int], arguments: dict[str, Any]) -> None:
    fit(np.random.default_rng(0).random(shape), r=1, **arguments)


def test_a_start_at_an_exact_factorisation_stays_there() -> None:
    x, parts, truth = exact()
    codes = np.linalg.lstsq(parts.T, x.T, rcond=None)[0].T.clip(min=0)
    for arguments in ({}, {"hoyer_H": truth - 1e-6}):
        model = GroupSparseNMF(5, init="custom", max_iter=20, tol=0, **arguments)
        model.fit(x, W=codes, H=parts)
        assert model.loss_curve_[-1] < 1e-9


@pytest.mark.parametrize("solver", ["auto", "gsp"])
@pytest.mark.parametrize("targets", [{"hoyer_H": 0.6}, {"hoyer_H": 0.6, "hoyer_W": 0.4}])
def test_going_on_from_an_earlier_fit_never_loses_what_it_had(
    targets: dict[str, float], solver: str
) -> None:
    x = noisy()
    first, codes = fit(x, solver=solver, max_iter=40, **targets)
    for iterations in (1, 30):
        again = GroupSparseNMF(
            4, solver=solver, init="custom", max_iter=iterations, tol=0, **targets
        )
        again_codes = again.fit_transform(x, W=codes, H=first.components_)
        assert again.loss_curve_[0] <= first.loss_curve_[-1] * (1 + 1e-12)
        assert error(x, again_codes, again.components_) == pytest.approx(again.loss_curve_[-1])
        assert again.hoyer_H_ >= 0.6 - 1e-9
    if solver == "auto":  # gspNMF had arrived
        assert again.loss_curve_[-1] < first.loss_curve_[-1]


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_the_ends_of_the_range(target: float) -> None:
    model, _ = fit(noisy(), hoyer_H=target)
    assert model.hoyer_H_ >= target - 1e-9
    if target == 1.0:
        assert ((model.components_ > 0).sum(axis=1) <= 1).all()


def test_a_component_that_died_is_revived() -> None:
    x = noisy()
    w, h = start(60, 40, 5)
    w[:, 3] = 0
    h[3] = 0
    model = GroupSparseNMF(5, init="custom", max_iter=100, tol=0, random_state=0)
    codes = model.fit_transform(x, W=w, H=h)
    assert model.n_revived_ >= 1
    assert codes[:, 3].any()
    assert model.components_[3].any()
    four = GroupSparseNMF(4, init="random", max_iter=100, tol=0, random_state=0).fit(x)
    assert model.reconstruction_err_ < four.reconstruction_err_


@pytest.mark.parametrize(
    ("bad", "message"),
    [(np.nan, "NaN"), (np.inf, "infinity"), (-1.0, "Negative values in data")],
)
def test_data_that_cannot_be_factorised(bad: float, message: str) -> None:
    x = noisy()
    x[3, 4] = bad
    with pytest.raises(ValueError, match=message):
        GroupSparseNMF(3).fit(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hoyer_H": 1.2}, "hoyer_H is 1.2"),
        ({"solver": "mu"}, "solver is 'mu'"),
        ({"solver": "ahals", "hoyer_H": 0.5}, "knows no sparsity"),
        ({"init": "zeros"}, "init is 'zeros'"),
        ({"init": "custom"}, "needs W"),
        ({"n_components": 0}, "n_components is 0"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"weights_H": np.ones(40)}, "without hoyer_H"),
        ({"hoyer_H": 0.5, "weights_H": np.ones(3)}, "weights_H has shape"),
        ({"hoyer_H": 0.5, "weights_H": -np.ones(40)}, "negative"),
        ({"hoyer_H": 0.5, "weights_H": np.zeros(40)}, "weights_H are all zero"),
        ({"hoyer_W": 0.5, "weights_W": np.ones((5, 60))}, r"expected \(60,\) or \(60, 5\)"),
        ({"hoyer_H": 0.5, "weights_H": np.ones(40), "solver": "l1-ahals"}, "knows no weights"),
        ({"hoyer_H": "0.5"}, "hoyer_H is '0.5'"),
        ({"hoyer_W": float("nan")}, "hoyer_W is nan"),
        ({"tol": -1e-4}, "tol is -0.0001"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"max_time": "1 h"}, "max_time is '1 h'"),
        ({"callback": "print"}, "callback is 'print'"),
        ({"extrapolate": "no"}, "extrapolate is 'no'"),
        ({"verbose": -1}, "verbose is -1"),
        ({"n_components": 41, "init": "nndsvd"}, "needs n_components <="),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(gs.InvalidInput, match=message):
        GroupSparseNMF(**{"n_components": 5, **arguments}).fit(noisy())


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float64, 1e200), (np.float64, 1e-200), (np.float32, 1e30), (np.float32, 1e-30)],
)
def test_data_whose_squares_are_out_of_range_is_refused(dtype: Any, scale: float) -> None:
    """An error of exactly zero would be reported of numbers that are too small to be squared."""
    x = (scale * noisy()).astype(dtype)
    with pytest.raises(gs.InvalidInput, match=f"out of the range of {np.dtype(dtype).name}"):
        GroupSparseNMF(4, hoyer_H=0.6).fit(x)
    near = 2.0 ** -round(np.log2(scale) * 0.9)  # a power of two changes nothing but the exponents
    model, _ = fit((near * x).astype(dtype), hoyer_H=0.6, init="random", max_iter=10)
    same, _ = fit(noisy().astype(dtype), hoyer_H=0.6, init="random", max_iter=10)
    assert model.loss_curve_[0] == pytest.approx(same.loss_curve_[0], rel=1e-3)


def test_weights_of_any_size_count_by_their_ratios() -> None:
    weights = np.linspace(0.2, 3.0, 40)
    model, codes = fit(noisy(), hoyer_H=0.6, weights_H=weights)
    for size in (2.0**600, 2.0**-600):
        other, other_codes = fit(noisy(), hoyer_H=0.6, weights_H=size * weights)
        np.testing.assert_array_equal(other_codes, codes)
        assert other.hoyer_H_ == model.hoyer_H_


def test_a_start_may_be_given_as_lists() -> None:
    w, h = start(60, 40, 5)
    model = GroupSparseNMF(5, init="custom", max_iter=5, tol=0)
    expected = model.fit_transform(noisy(), W=w, H=h)
    codes = model.fit_transform(noisy().tolist(), W=w.tolist(), H=h.tolist())
    np.testing.assert_array_equal(codes, expected)


def test_a_start_that_does_not_fit_is_refused() -> None:
    w, h = start(60, 40, 5)
    model = GroupSparseNMF(5, init="custom")
    with pytest.raises(gs.InvalidInput, match="H has shape"):
        model.fit(noisy(), W=w, H=h[:, 1:])
    with pytest.raises(gs.InvalidInput, match="W is all zero"):
        model.fit(noisy(), W=0 * w, H=h)
    with pytest.raises(gs.InvalidInput, match="init is not 'custom'"):
        GroupSparseNMF(5).fit(noisy(), W=w, H=h)


def test_an_interrupt_keeps_the_best_so_far() -> None:
    def interrupt(progress: Any) -> None:
        if progress.iteration == 7:
            raise KeyboardInterrupt

    model = GroupSparseNMF(4, hoyer_H=0.6, callback=interrupt, random_state=0)
    with pytest.warns(ConvergenceWarning, match="interrupted after 7 iterations"):
        codes = model.fit_transform(noisy())
    assert model.stopped_by_ == "interrupted"
    assert model.hoyer_H_ == pytest.approx(0.6, abs=1e-9)
    assert error(noisy(), codes, model.components_) == pytest.approx(model.loss_curve_[-1])


@pytest.mark.parametrize("improved_in", [1, 8])
def test_an_interrupt_inside_an_iteration_keeps_the_best(
    improved_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that iteration had already found counts, and all that is reported belongs to it."""
    calls = []

    def interrupt(self: Any, useless: Any) -> None:  # runs after the best was replaced
        calls.append(self.outcome.best.loss)
        if len(calls) == improved_in:
            raise KeyboardInterrupt

    monkeypatch.setattr(alternating._Search, "_revive", interrupt)
    model = GroupSparseNMF(4, hoyer_H=0.6, random_state=0)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        codes = model.fit_transform(noisy())
    assert len(model.loss_curve_) == len(model.time_curve_) == model.n_iter_
    assert model.loss_curve_[-1] == calls[-1]
    assert error(noisy(), codes, model.components_) == pytest.approx(model.loss_curve_[-1])
    assert model.reconstruction_err_ == pytest.approx(calls[-1] * np.linalg.norm(noisy()))


def test_max_time_ends_a_fit() -> None:
    model, _ = fit(noisy(), hoyer_H=0.6, max_iter=10**6, max_time=0.2)
    assert model.stopped_by_ == "max_time"
    assert 0.2 <= model.time_curve_[-1] < 2


def test_the_best_factorisation_is_kept() -> None:
    """Although later ones may be worse: the steps of cspNMF are not sure to go down."""
    model, codes = fit(noisy(), solver="csp", hoyer_H=0.8)
    assert error(noisy(), codes, model.components_) == pytest.approx(model.loss_curve_.min())
