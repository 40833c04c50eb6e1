"""The scikit-learn contract, and what the estimator promises beyond it."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import groupsparse as gs
from tests.nmf.problems import error, exact, noisy, start

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from groupsparse.nmf import GroupSparseNMF, Progress

SPARSE = ["auto", "gsp", "csp"]


def fitted(x: Any, **arguments: Any) -> tuple[GroupSparseNMF, Any]:
    settings = {"n_components": 5, "max_iter": 60, "tol": 0, "random_state": 0, **arguments}
    model = GroupSparseNMF(**settings)
    return model, model.fit_transform(x)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([GroupSparseNMF(), GroupSparseNMF(hoyer_H=0.5)])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("solver", SPARSE)
def test_target_is_met_and_losses_never_rise(solver: str) -> None:
    x = noisy()
    model, codes = fitted(x, solver=solver, hoyer_H=0.6)
    assert gs.average_hoyer(model.components_) == pytest.approx(0.6, abs=1e-9)
    assert model.hoyer_H_ == pytest.approx(0.6, abs=1e-9)
    if solver == "csp":
        assert gs.hoyer(model.components_).min() >= 0.6 - 1e-9
    assert (np.diff(model.loss_curve_) <= 0).all()
    assert len(model.loss_curve_) == len(model.time_curve_) == model.n_iter_ == 60
    assert error(x, codes, model.components_) == pytest.approx(model.loss_curve_[-1], rel=1e-9)
    assert model.reconstruction_err_ == pytest.approx(np.linalg.norm(x - codes @ model.components_))


@pytest.mark.parametrize("solver", ["auto", "gsp"])
def test_targets_on_the_codes_and_on_both(solver: str) -> None:
    x = noisy()
    model, codes = fitted(x, solver=solver, hoyer_W=0.4)
    assert gs.average_hoyer(codes, axis=0) == pytest.approx(0.4, abs=1e-9)
    model, codes = fitted(x, solver=solver, hoyer_W=0.4, hoyer_H=0.5)
    assert model.hoyer_W_ == pytest.approx(0.4, abs=1e-9)
    assert model.hoyer_H_ == pytest.approx(0.5, abs=1e-9)
    assert gs.average_hoyer(codes, axis=0) == pytest.approx(0.4, abs=1e-9)


def test_every_vector_meets_the_target_where_that_is_asked() -> None:
    model, _ = fitted(noisy(), hoyer_H=0.6, per_vector=True)
    assert gs.hoyer(model.components_).min() >= 0.6 - 1e-9
    assert model.hoyer_H_ == pytest.approx(gs.hoyer(model.components_).min())


def test_weights_count_in_the_measure() -> None:
    weights = np.linspace(0.2, 3.0, 40)
    model, _ = fitted(noisy(), hoyer_H=0.6, weights_H=weights)
    assert gs.average_hoyer(model.components_, weights=weights) == pytest.approx(0.6, abs=1e-9)
    assert abs(gs.average_hoyer(model.components_) - 0.6) > 1e-3
    sample_weights = np.linspace(0.2, 3.0, 60)
    model, codes = fitted(noisy(), hoyer_W=0.5, weights_W=sample_weights)
    assert gs.average_hoyer(codes.T, weights=sample_weights) == pytest.approx(0.5, abs=1e-9)


def test_penalties_are_tuned_to_zeros_and_maxima_are_one() -> None:
    model, codes = fitted(noisy(), solver="l1-ahals", hoyer_H=0.5)
    assert gs.zero_fraction(model.components_) >= 0.5
    np.testing.assert_allclose(model.components_.max(axis=1), 1)
    assert error(noisy(), codes, model.components_) == pytest.approx(model.loss_curve_[-1])


def test_the_default_is_better_than_each_of_the_papers_algorithms() -> None:
    x, _, truth = exact(100, 100, 10)
    w, h = start(100, 100, 10)
    w *= np.vdot(w.T @ x, h) / np.vdot(w.T @ w, h @ h.T)
    losses = {}
    for solver in ("auto", "gsp", "gsp as in the paper", "l1-ahals", "ahals", "nenmf"):
        model = GroupSparseNMF(
            10,
            solver=solver.split()[0],
            extrapolate=False if "paper" in solver else None,
            hoyer_H=None if solver in ("ahals", "nenmf") else truth,
            init="custom",
            max_iter=500,
            tol=0,
        )
        losses[solver] = model.fit(x, W=w, H=h).loss_curve_[-1]
    assert losses.pop("auto") < 1e-8
    assert losses.pop("gsp") < 1e-8  # extrapolated, it is the default's equal here
    assert all(loss > 1e-8 for loss in losses.values())


@pytest.mark.parametrize("solver", ["auto", "ahals", "nenmf"])
def test_without_a_target_it_is_at_least_as_good_as_scikit_learn(solver: str) -> None:
    from sklearn.decomposition import NMF

    x = noisy(100, 80, 8)
    w, h = start(100, 80, 8)
    ours = GroupSparseNMF(8, solver=solver, init="custom", max_iter=1000, tol=0).fit(x, W=w, H=h)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs = NMF(8, init="custom", max_iter=300, tol=0)
        theirs.fit_transform(x, W=w.copy(), H=h.copy())
    assert ours.reconstruction_err_ <= theirs.reconstruction_err_ * 1.01


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_matrix, sp.csr_matrix])
def test_sparse_input_gives_the_same_result(form: Any) -> None:
    x = np.where(noisy() > 1.0, noisy(), 0.0)
    dense, dense_codes = fitted(x, hoyer_H=0.6)
    model, codes = fitted(form(x), hoyer_H=0.6)
    np.testing.assert_allclose(model.components_, dense.components_, atol=1e-9)
    np.testing.assert_allclose(codes, dense_codes, atol=1e-9)
    np.testing.assert_allclose(model.transform(form(x)), model.transform(x), atol=1e-9)


def test_sparse_input_is_never_made_dense() -> None:
    x = sp.random_array((20000, 30000), density=2e-6, rng=np.random.default_rng(0), format="csr")
    _, codes = fitted(x, n_components=2, max_iter=3)  # dense, it would take 4.8 GB
    assert codes.shape == (20000, 2)


def test_float32_stays_float32() -> None:
    model, codes = fitted(noisy().astype(np.float32), hoyer_H=0.6)
    assert model.components_.dtype == codes.dtype == np.float32
    assert model.hoyer_H_ == pytest.approx(0.6, abs=1e-6)
    double, _ = fitted(noisy(), hoyer_H=0.6, max_iter=10)
    single, _ = fitted(noisy().astype(np.float32), hoyer_H=0.6, max_iter=10)
    np.testing.assert_allclose(single.components_, double.components_, atol=1e-2)


@pytest.mark.parametrize("shape", [(300, 30_000), (30_000, 300)])
@pytest.mark.parametrize("tensor", [False, True])
def test_the_loss_of_float32_data_is_right(shape: tuple[int, int], tensor: bool) -> None:
    """Of a small error the long sums cancel: each must be right to 1e-7 of its size."""
    rng, (n, m), r = np.random.default_rng(0), shape, 10
    w, h = rng.random((n, r)) * (rng.random((n, r)) < 0.5), rng.random((r, m))
    x = (w @ h * (1.0 + 0.03 * rng.uniform(-1.0, 1.0, (n, m)))).astype(np.float32)
    given = torch.from_numpy(x) if tensor else x
    model = GroupSparseNMF(r, init="custom", max_iter=3, tol=0)
    codes = model.fit_transform(given, W=w.astype(np.float32), H=h.astype(np.float32))
    exact = x.astype(float) - np.asarray(codes).astype(float) @ np.asarray(model.components_)
    assert 0.012 < model.loss_curve_[-1] < 0.03
    assert model.loss_curve_[-1] == pytest.approx(
        np.linalg.norm(exact) / np.linalg.norm(x.astype(float)), abs=3e-6
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"solver": "auto"},
        {"solver": "ahals"},
        {"solver": "nenmf"},
        *({"solver": name, "hoyer_H": 0.6} for name in ("auto", "gsp", "csp", "l1-ahals")),
        *({"solver": name, "hoyer_W": 0.4} for name in ("auto", "gsp", "csp", "l1-ahals")),
        {"hoyer_H": 0.6, "weights_H": np.linspace(0.2, 3.0, 40)},
        {"hoyer_W": 0.4, "hoyer_H": 0.6, "per_vector": True},
    ],
)
def test_no_solver_leaves_float32(arguments: dict[str, Any]) -> None:
    """Not even inside: with NumPy a single float64 number would make all that follows double."""
    x = noisy().astype(np.float32)
    seen: list[Any] = []
    model, codes = fitted(
        x, max_iter=12, callback=lambda p: seen.extend((p.components, p.codes)), **arguments
    )
    assert {array.dtype for array in seen} == {np.dtype(np.float32)}
    assert model.components_.dtype == codes.dtype == model.transform(x).dtype == np.float32


@pytest.mark.parametrize("init", [None, "random", "nndsvd", "nndsvda", "nndsvdar"])
def test_every_init_starts_a_fit(init: str | None) -> None:
    model, _ = fitted(noisy(), init=init, max_iter=100)
    assert model.loss_curve_[-1] < 0.09


def test_same_seed_same_bits() -> None:
    one, first = fitted(noisy(), hoyer_H=0.6)
    two, second = fitted(noisy(), hoyer_H=0.6)
    assert np.array_equal(one.components_, two.components_)
    assert np.array_equal(first, second)
    other, _ = fitted(noisy(), hoyer_H=0.6, random_state=1)
    assert not np.array_equal(one.components_, other.components_)


def test_it_lives_in_pipelines_searches_and_frames() -> None:
    x = noisy()
    search = GridSearchCV(
        GroupSparseNMF(4, max_iter=20, tol=0, random_state=0),
        {"hoyer_H": [0.4, 0.6]},
        scoring=lambda m, x: -np.linalg.norm(x - m.inverse_transform(m.transform(x))),
        cv=2,
    )
    assert make_pipeline(MinMaxScaler(), search).fit(x)[-1].best_params_["hoyer_H"] == 0.4
    model = GroupSparseNMF(3, max_iter=10, tol=0, random_state=0)
    assert clone(model).get_params() == model.get_params()
    names = list(model.fit(x).get_feature_names_out())
    assert names == [f"groupsparsenmf{k}" for k in range(3)]
    pandas = pytest.importorskip("pandas")
    frame = model.set_output(transform="pandas").fit_transform(pandas.DataFrame(x).add_prefix("f"))
    assert list(frame.columns) == names


def test_transform_is_nonnegative_least_squares_for_each_sample_alone() -> None:
    from scipy.optimize import nnls

    x = noisy()
    model, _ = fitted(x, hoyer_H=0.6, hoyer_W=0.5)
    codes = model.transform(x)
    truth = np.array([nnls(model.components_.T, sample)[0] for sample in x])
    np.testing.assert_allclose(codes, truth, atol=1e-6)
    np.testing.assert_allclose(model.transform(x[3:4]), codes[3:4], atol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(codes), codes @ model.components_)


def test_codes_in_float32_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be swept on for changes that only rounding makes."""
    from scipy.optimize import nnls

    from groupsparse.nmf import sources

    x = np.random.default_rng(0).random((300, 100), np.float32)
    model, _ = fitted(x, n_components=40)
    codes = model.transform(x)
    truth = np.array([nnls(model.components_.T.astype(float), sample)[0] for sample in x])
    np.testing.assert_allclose(codes, truth, atol=1e-4 * truth.max())
    monkeypatch.setattr(sources, "ENCODE_SWEEPS", 300)
    np.testing.assert_array_equal(model.transform(x), codes)


def test_callback_sees_progress_and_can_stop(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> np.bool_:  # what comparing NumPy numbers gives
        seen.append(progress)
        return np.bool_(len(seen) == 12)

    model, _ = fitted(noisy(), hoyer_H=0.6, callback=watch, verbose=1)
    assert model.stopped_by_ == "callback"
    assert [p.iteration for p in seen] == list(range(1, 13))
    assert seen[-1].loss == model.loss_curve_[-1]
    assert seen[-1].hoyer >= 0.6 - 1e-9
    [line] = capsys.readouterr().out.splitlines()
    found = re.fullmatch(
        r"iteration 10/60  error (.+) %  hoyer\(H\) (.+)  at most (.+) s left", line
    )
    assert found, line
    assert float(found[1]) == pytest.approx(100 * seen[9].loss, abs=1e-4)
    assert float(found[2]) == pytest.approx(seen[9].hoyer, abs=1e-4)
    assert float(found[3]) == pytest.approx(5 * seen[9].seconds, abs=0.06)  # for the other fifty
    weights = np.linspace(0.2, 3.0, 40)
    fitted(noisy(), hoyer_W=0.4, hoyer_H=0.7, weights_H=weights, max_iter=100, verbose=1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all("hoyer(H) 0.7000  hoyer(W) 0.4000" in line for line in lines[-3:])
    timed, _ = fitted(noisy(), max_time=1e-6, verbose=2)
    assert timed.stopped_by_ == "max_time"
    assert "at most 0.0 s left" in capsys.readouterr().out


def test_it_says_whether_it_converged() -> None:
    with pytest.warns(ConvergenceWarning, match="stopped by max_iter after 5 iterations"):
        GroupSparseNMF(5, max_iter=5, random_state=0).fit(noisy())
    model = GroupSparseNMF(5, max_iter=5000, tol=1e-3, random_state=0).fit(noisy())
    assert model.stopped_by_ == "converged"
    assert model.n_iter_ < 2000
