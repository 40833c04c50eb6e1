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

import groupsparse as gs
from benchmarks.timing import side_by_side
from experiments import nmf_common as common
from experiments.tables import table
from groupsparse.nmf import GroupSparseNMF

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
) -> dict[str, float]:
    model, codes = common.fit(x, start, "auto", TARGET, iterations=WARM)
    parts, columns = model.components_, np.ascontiguousarray(codes.T)
    p = gs.solve(parts * 1.001 + 1e-3 * parts.max(), TARGET)
    nearby = parts * 1.002 + 1e-3 * parts.max()
    seconds = side_by_side(
        {
            "two dense products": lambda: (parts @ x.T, columns @ x),
            "projection": lambda: gs.solve(nearby, TARGET, start=p),
        }
    )
    for name in names:
        fitted, _ = common.fit(x, start, name, TARGET, iterations=WARM)
        seconds[name] = float(np.median(np.diff(fitted.time_curve_)))
    return seconds


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
    seconds = results["iteration"]
    floor = seconds["two dense products"]
    rows = [
        [common.LABELS.get(name, name), f"{1e3 * value:.2f}", f"{value / floor:.1f}"]
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
