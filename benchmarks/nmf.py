"""NMF of the CBCL faces: one iteration against its dense products, and a race with scikit-learn.

The race is to the error that scikit-learn's coordinate descent has after 500 iterations. Needs the
real data (GROUPSPARSE_DATA); without it, random data of the same shape stands in, and the results
say so.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import side_by_side
from experiments import nmf_common as common
from experiments.tables import table
from groupsparse.nmf import GroupSparseNMF
from groupsparse.nmf.constraints import Target

RANK, TARGET, SHAPE = 49, 0.85, (2429, 361)
WARM = 60  # iterations before anything is timed: multipliers and supports have settled


def run(quick: bool) -> dict[str, Any]:
    """Time iterations of every solver, the projection in them, and the race with scikit-learn."""
    folder = os.environ.get("GROUPSPARSE_DATA")
    x = common.cbcl(Path(folder)) if folder else np.random.default_rng(0).random(SHAPE)
    start = common.uniform_start(x, RANK, 0)
    return {
        "data": "CBCL" if folder else "random, of the shape of CBCL",
        "iteration": _iterations(x, start, ("auto", "gsp") if quick else tuple(common.CONTENDERS)),
        "race": _race(x, start, 20 if quick else 500),
    }


def _iterations(
    x: np.ndarray, start: tuple[np.ndarray, np.ndarray], names: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    model, codes = common.fit(x, start, "auto", TARGET, iterations=WARM)
    parts, columns = model.components_, np.ascontiguousarray(codes.T)
    # As in an update: what was projected has moved a little since.
    lifted, target = parts + 1e-3 * parts.max(), Target(TARGET)
    _, multiplier = target.project(lifted, 0.0)
    seconds = side_by_side(
        {
            "two dense products": lambda: (parts @ x.T, columns @ x),
            "projection": lambda: target.project(1.001 * lifted, multiplier),
        }
    )
    beside = {}
    for name in names:
        seconds[name], beside[name] = _iteration(x, start, name, (parts, columns))
    return {"seconds": seconds, "two dense products beside it": beside}


def _iteration(
    x: np.ndarray,
    start: tuple[np.ndarray, np.ndarray],
    name: str,
    factors: tuple[np.ndarray, np.ndarray],
) -> tuple[float, float]:
    """Seconds of an iteration, and of two products that take turns with it."""
    parts, columns = factors
    products: list[float] = []

    def make_products(_: Any) -> None:
        began = time.perf_counter()
        _ = parts @ x.T, columns @ x
        products.append(time.perf_counter() - began)

    fitted, _ = common.fit(x, start, name, TARGET, iterations=WARM, callback=make_products)
    # What the callback took counts as time of the fit.
    steps = np.diff(fitted.time_curve_) - products[:-1]
    return float(np.median(steps)), float(np.median(products))


def _race(x: np.ndarray, start: tuple[np.ndarray, np.ndarray], iterations: int) -> dict[str, float]:
    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs = NMF(RANK, init="custom", max_iter=iterations, tol=0)
        theirs.fit_transform(x, W=start[0].copy(), H=start[1].copy())
    seconds = time.perf_counter() - began
    goal = theirs.reconstruction_err_ / np.linalg.norm(x)
    ours = GroupSparseNMF(
        RANK,
        init="custom",
        max_iter=10 * iterations,
        tol=0,
        callback=lambda progress: progress.loss <= goal,
    )
    ours.fit(x, W=start[0], H=start[1])
    return {
        "scikit-learn error %": 100 * float(goal),
        "scikit-learn seconds": seconds,
        "seconds": float(ours.time_curve_[-1]),
        "iterations": ours.n_iter_,
        "reached": bool(ours.loss_curve_[-1] <= goal),
    }


def report(results: dict[str, Any]) -> str:
    """Return both tables."""
    seconds, beside = results["iteration"].values()
    floor = seconds["two dense products"]
    rows = [
        [
            common.LABELS.get(name, name),
            f"{1e3 * value:.2f}",
            f"{value / beside.get(name, floor):.1f}",
        ]
        for name, value in seconds.items()
    ]
    race = results["race"]
    race_rows = [
        ["scikit-learn cd", f"{race['scikit-learn seconds']:.2f}", ""],
        [
            "auto, to the same error",
            f"{race['seconds']:.2f}",
            f"{race['scikit-learn seconds'] / race['seconds']:.1f} x faster",
        ],
    ]
    return "\n\n".join(
        [
            f"Data: {results['data']}, 2429 × 361, r = {RANK}.",
            table(["one iteration", "ms", "per two products"], rows),
            table([f"to {race['scikit-learn error %']:.3f} %", "seconds", ""], race_rows),
        ]
    )
