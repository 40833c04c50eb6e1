"""Synthetic data with an exact factorisation of known sparsity (Figure 1, left).

m = n = 100, r = 10, parts max(0, N(0, 1)), uniform codes, 50 draws, 500 iterations from uniform
starts. The sparse algorithms are told the average Hoyer measure of the true parts (ℓ₁ A-HALS their
fraction of zeros)::

    python -m experiments.nmf_synthetic                # everything, then the picture
    python -m experiments.nmf_synthetic --only gsp     # one algorithm
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import groupsparse as gs
from experiments import nmf_common as common
from experiments import record
from experiments.tables import table

SIDE, RANK, DRAWS = 100, 10, 50


def draw_data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the data, one sample per row, and its true parts."""
    random = np.random.default_rng([1, seed])
    parts = np.maximum(random.standard_normal((RANK, SIDE)), 0)
    return random.random((SIDE, RANK)) @ parts, parts


def run(name: str, draws: int = DRAWS) -> dict[str, Any]:
    """Fit one algorithm to every draw."""
    fits, curves = [], []
    for seed in range(draws):
        x, parts = draw_data(seed)
        truth = gs.zero_fraction(parts) if name == "l1-ahals" else gs.average_hoyer(parts)
        model, codes = common.fit(x, common.uniform_start(x, RANK, seed), name, truth)
        fits.append({**common.summary(x, model, codes), "true": truth})
        curves.append(100 * model.loss_curve_)
    return {"fits": fits, "mean curve %": np.mean(curves, axis=0)}


def report(results: dict[str, dict[str, Any]]) -> str:
    """Return a table of all algorithms that have a record."""
    return table(common.COLUMNS, rows(results))


def rows(results: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return the rows of that table."""
    return common.fit_rows(results, ".1e")


def main() -> None:
    """Run what was asked for, keep its records, and draw all that there are."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.nmf_synthetic", description=__doc__
    )
    parser.add_argument("--only", choices=common.CONTENDERS, action="append")
    parser.add_argument("--draw", action="store_true", help="only redraw from the records")
    options = parser.parse_args()
    for name in () if options.draw else options.only or common.CONTENDERS:
        began = time.perf_counter()
        results = run(name)
        parameters = {"side": SIDE, "rank": RANK, "draws": DRAWS}
        seconds = time.perf_counter() - began
        record.save(
            f"nmf_synthetic_{name}", results, seconds=seconds, seed=0, parameters=parameters
        )
    found = common.records_of("nmf_synthetic")
    print(report(found))
    common.draw_curves(
        {name: result["mean curve %"] for name, result in found.items()},
        common.FIGURES / "nmf_synthetic.png",
        title=f"synthetic, mean of {DRAWS} draws",
        floor=0.0,
    )


if __name__ == "__main__":
    main()
