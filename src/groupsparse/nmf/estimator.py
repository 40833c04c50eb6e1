"""GroupSparseNMF: the scikit-learn face of the factorisation. No mathematics here."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..errors import InvalidInput, missing_extra

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:  # pragma: no cover
    raise missing_extra("scikit-learn", "sklearn") from error

from .algorithms import make_algorithm
from .alternating import Callback, Limits, Outcome, Progress, alternate
from .arguments import check_settings, make_target
from .arrays import is_tensor, like, norms
from .report import combined, printer
from .sources import Source, StreamedSource, TensorSource, common_scale, unit_scale


class GroupSparseNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Factorise X ≈ W H, non-negative, with a target Hoyer measure for either factor::

        minimise  ‖X − W H‖_F   subject to  W ≥ 0,  H ≥ 0,
                  average Hoyer measure of the rows of H    ≥ hoyer_H,
                  average Hoyer measure of the columns of W ≥ hoyer_W

    Which component becomes how sparse follows from the data; only the average is prescribed.

    Parameters
    ----------
    n_components : int, optional
        The rank r; the number of features by default.
    hoyer_W, hoyer_H : float, optional
        Target average Hoyer measure of the columns of W and of the rows of H, in [0, 1]. With
        ``solver="l1-ahals"`` the target is the fraction of zeros of every vector instead.
    weights_W : array of shape (n_samples,) or (n_samples, n_components), optional
        Weights of the entries in the measure of W.
    weights_H : array of shape (n_features,) or (n_components, n_features), optional
        Weights of the entries in the measure of H.
    per_vector : bool
        Whether every vector has to meet the target, and not only their average.
    solver : {"auto", "ahals", "nenmf", "l1-ahals", "csp", "gsp"}
        ``"auto"`` is the best one, with targets or without. The others are the algorithms of the
        paper: A-HALS and NeNMF without targets, ℓ₁ A-HALS, cspNMF and gspNMF with one.
    extrapolate : bool, optional
        Whether each factor goes a little beyond its update, with restarts. By default ``"auto"``
        and ``"gsp"`` do, the others alternate as in the paper; False makes gspNMF do so too.
    init : {None, "random", "nndsvd", "nndsvda", "nndsvdar", "custom"}
        As in :class:`sklearn.decomposition.NMF`. None means ``"random"`` where there is a target or
        the data is not in memory, otherwise ``"nndsvda"`` if r ≤ min(n, m).
    tol : float
        Stop when ten iterations lower the error by less than this fraction of it (errors under
        0.1 % count as 0.1 %). 0: never.
    max_iter : int
        Iterations, each one update of either factor.
    max_time : float, optional
        Seconds after which to stop.
    random_state : int, RandomState or None
        The same seed gives the same bits.
    callback : callable, optional
        Called with a :class:`Progress` after every iteration; a true answer ends the fit.
    verbose : int
        Print a line of progress every ten iterations (1) or every iteration (2): the error, the
        Hoyer measure of H, that of W too if it has a target, and the time left.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        H, scaled so that each of its rows has the norm of its column of W (with
        ``solver="l1-ahals"`` so that the largest entry of each penalised vector is 1).
    reconstruction_err_ : float
        ‖X − W H‖_F.
    hoyer_W_, hoyer_H_ : float
        The (weighted) average Hoyer measures that were reached, or the least with ``per_vector``.
    loss_curve_ : array of shape (n_iter_,)
        ‖X − W H‖_F/‖X‖_F of the best factorisation after each iteration; it meets all targets.
    time_curve_ : array of shape (n_iter_,)
        Seconds since the first iteration began.
    n_iter_ : int
        Iterations.
    n_components_ : int
        The rank.
    n_revived_ : int
        How often a component that had become useless was given a new direction.
    stopped_by_ : {"converged", "max_iter", "max_time", "callback", "interrupted"}
        Why the fit ended. After Ctrl-C it keeps the best factorisation so far.

    Notes
    -----
    :meth:`transform` finds for each new sample alone the best non-negative codes, without
    ``hoyer_W``: an average over all samples of a fit says nothing about a single new one, and what
    a sample is mapped to must not depend on the samples it comes with. ``fit_transform`` returns
    the W of the fit, which meets the target.

    X may be an array or sparse matrix, a memory map larger than memory, a Dask array whose chunks
    are spread over a cluster, or a torch tensor; what comes back is of the same kind.

    Examples
    --------
    >>> import numpy as np
    >>> from groupsparse.nmf import GroupSparseNMF
    >>> X = np.random.default_rng(0).random((30, 20))
    >>> model = GroupSparseNMF(4, hoyer_H=0.7, max_iter=100, tol=0, random_state=0).fit(X)
    >>> round(model.hoyer_H_, 6)
    0.7
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        hoyer_W: float | None = None,
        hoyer_H: float | None = None,
        weights_W: Any = None,
        weights_H: Any = None,
        per_vector: bool = False,
        solver: str = "auto",
        extrapolate: bool | None = None,
        init: str | None = None,
        tol: float = 1e-4,
        max_iter: int = 500,
        max_time: float | None = None,
        random_state: Any = None,
        callback: Callback | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.hoyer_W = hoyer_W
        self.hoyer_H = hoyer_H
        self.weights_W = weights_W
        self.weights_H = weights_H
        self.per_vector = per_vector
        self.solver = solver
        self.extrapolate = extrapolate
        self.init = init
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, W: Any = None, H: Any = None) -> GroupSparseNMF:
        """Factorise X.

        Parameters
        ----------
        X : array-like, sparse matrix, memory map, Dask array or torch tensor
            Of shape (n_samples, n_features), non-negative.
        y : ignored
        W, H : arrays, optional
            Where to start, with ``init="custom"``.

        Returns
        -------
        self
        """
        self.fit_transform(X, W=W, H=H)
        return self

    def fit_transform(self, X: Any, y: Any = None, W: Any = None, H: Any = None) -> Any:
        """Factorise X and return W, of shape (n_samples, n_components). See :meth:`fit`."""
        source = self._source(X, reset=True)
        n, m = source.shape
        r = check_settings(self, m)
        target_w = make_target(self.hoyer_W, self.weights_W, self.per_vector, "W", (r, n))
        target_h = make_target(self.hoyer_H, self.weights_H, self.per_vector, "H", (r, m))
        algorithm = make_algorithm(self.solver, (n, m), r, target_w, target_h, self.extrapolate)
        rng = check_random_state(self.random_state)
        constrained = target_w is not None or target_h is not None
        w, h = source.start(self.init, r, W, H, int(rng.randint(2**31)), constrained)
        samples = source.samples(algorithm.update_w)

        def measures(progress: Progress) -> dict[str, float]:
            found = {"H": source.measure(progress.components, target_h)}
            if target_w is not None:
                found["W"] = source.measure_codes(progress.codes, target_w)
            return found

        outcome = alternate(
            samples,
            algorithm.update_w,
            algorithm.update_h,
            w,
            h,
            Limits(self.max_iter, self.tol, self.max_time),
            accelerate=algorithm.accelerate,
            rng=rng,
            feasible=self.init == "custom" and self._meets(source, (w, target_w), (h, target_h)),
            callback=combined(
                self.callback, printer(self.verbose, self.max_iter, self.max_time, measures)
            ),
        )
        best = outcome.best
        codes = samples.value(best.state)
        scale = common_scale(best.code_norms, norms(best.h))
        if self.solver == "l1-ahals" and constrained:
            scale = 1 / unit_scale(codes) if target_h is None else unit_scale(best.h)
        codes = source.divide(codes, scale)
        self.components_ = best.h * like(scale, best.h)[:, None]
        self.n_components_ = r
        self._n_features_out = r
        self.hoyer_W_ = source.measure_codes(codes, target_w)
        self.hoyer_H_ = source.measure(self.components_, target_h)
        self._keep(outcome, samples.squared_norm)
        return source.codes(codes, r)

    def transform(self, X: Any) -> Any:
        """The best non-negative codes of each sample, with the components as they are.

        Parameters
        ----------
        X : like in :meth:`fit`, of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_components)
        """
        check_is_fitted(self)
        source = self._source(X, reset=False)
        return source.codes(source.encode(self.components_), self.n_components_)

    def inverse_transform(self, X: Any) -> Any:
        """The samples that codes stand for.

        Parameters
        ----------
        X : array of shape (n_samples, n_components)

        Returns
        -------
        array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        h = self.components_
        if is_tensor(X):
            h = h.to(X) if is_tensor(h) else X.new_tensor(h)
        elif is_tensor(h):
            h = h.cpu().numpy()
        return X @ h

    def _source(self, X: Any, *, reset: bool) -> Source:
        source = _source_of_its_own(X)
        if source is not None:
            if reset:
                self.n_features_in_ = source.shape[1]
            elif source.shape[1] != self.n_features_in_:
                raise InvalidInput(
                    f"X has {source.shape[1]} features, but {type(self).__name__} is expecting "
                    f"{self.n_features_in_} features as input"
                )
            source.check()
            return source
        X = validate_data(
            self, X, accept_sparse=("csr", "csc"), dtype=[np.float64, np.float32], reset=reset
        )
        source = Source(X)
        source.check()
        return source

    def _meets(self, source: Source, of_w: Any, of_h: Any) -> bool:
        """Whether given factors meet the targets already, up to the rounding of their dtype."""
        if self.solver == "l1-ahals" or of_w[1] is of_h[1] is None:
            return False  # its targets are zeros; and without a target every update is a gain
        slack = 1e-9 if source.dtype == np.float64 else 1e-6
        measured = ((source.measure_codes, *of_w), (source.measure, *of_h))
        return all(
            target is None or measure(rows, target) >= target.hoyer - slack
            for measure, rows, target in measured
        )

    def _keep(self, outcome: Outcome, squared_norm: float) -> None:
        self.loss_curve_ = np.array(outcome.losses)
        self.time_curve_ = np.array(outcome.times)
        self.n_iter_ = len(outcome.losses)
        self.n_revived_ = outcome.revived
        self.stopped_by_ = outcome.reason
        self.reconstruction_err_ = outcome.best.loss * squared_norm**0.5
        if outcome.reason == "interrupted":
            warnings.warn(
                f"interrupted after {self.n_iter_} iterations; the best factorisation is kept",
                ConvergenceWarning,
                stacklevel=3,
            )
        elif outcome.reason in ("max_iter", "max_time") and self.tol > 0:
            warnings.warn(
                f"stopped by {outcome.reason} after {self.n_iter_} iterations, not converged to "
                f"tol={self.tol}: increase {outcome.reason}, or set tol=0 to always use it up",
                ConvergenceWarning,
                stacklevel=3,
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _source_of_its_own(x: Any) -> Source | None:
    """The source of an X that scikit-learn's validation knows nothing of; None for all others."""
    if is_tensor(x):
        return TensorSource(x)
    if isinstance(x, np.memmap):
        return StreamedSource(x)
    if type(x).__module__.startswith("dask."):
        from .dask import DaskSource

        return DaskSource(x)
    return None
