"""ORL faces with a plain and with a weighted target (appendix C.2).

First a plain target of 0.60 for the parts; then weights that grow with the distance from the middle
of the face, exp(‖(i, j) − (56.5, 46.5)‖/5), and a weighted target of 0.95. The paper does not say
how many parts it used; RANK is the one that comes nearest to its errors::

    python -m experiments.nmf_orl --data FOLDER
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import groupsparse as gs
from experiments import nmf_common as common
from experiments import record
from experiments.tables import table

SHAPE = (112, 92)
RANK = 16
PLAIN_TARGET, WEIGHTED_TARGET, SIGMA = 0.60, 0.95, 5.0
SOLVERS = ("auto", "gsp")
COLUMNS = ["algorithm", "error %", "average hoyer", "weighted hoyer", "zeros"]
PAPER = {
    "plain": {"error %": 20.34, "weighted hoyer": 0.89, "average hoyer": 0.60},
    "weighted": {"error %": 20.77, "weighted hoyer": 0.95, "average hoyer": 0.50},
}


def weights() -> np.ndarray:
    """Return the weight of every pixel; the paper counts rows and columns from 1."""
    i, j = np.mgrid[1 : SHAPE[0] + 1, 1 : SHAPE[1] + 1]
    return np.exp(np.hypot(i - 56.5, j - 46.5) / SIGMA).ravel()


def run(folder: Path, rank: int, iterations: int) -> dict[str, dict[str, float]]:
    """Fit both targets from the same start, draw the parts and where the error is."""
    images = common.orl(folder)
    x = images.reshape(len(images), -1)
    start = common.uniform_start(x, rank, 0)
    weight = weights()
    results = {}
    for solver in SOLVERS:
        for kind, target, more in (
            ("plain", PLAIN_TARGET, {}),
            ("weighted", WEIGHTED_TARGET, {"weights_H": weight}),
        ):
            model, codes = common.fit(x, start, solver, target, iterations=iterations, **more)
            parts = model.components_
            results[f"{solver} {kind}"] = {
                **common.summary(x, model, codes),
                "weighted hoyer": gs.average_hoyer(parts, weights=weight),
            }
            if solver == "auto":
                _draw(f"nmf_orl_{kind}", parts, x - codes @ parts)
    return results


def _draw(name: str, parts: np.ndarray, rest: np.ndarray) -> None:
    common.draw_images(parts.reshape(-1, *SHAPE), common.FIGURES / f"{name}.png", columns=4)
    mean = (rest**2).mean(axis=0).reshape(1, *SHAPE)
    common.draw_images(mean, common.FIGURES / f"{name}_residual.png", columns=1)


def report(results: dict[str, dict[str, float]]) -> str:
    """Return our figures beside the paper's."""
    return table(COLUMNS, rows(results))


def rows(results: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return the rows of that table."""
    found = [
        [f"paper, {kind}"] + [f"{figures[c]:.4g}" if c in figures else "" for c in COLUMNS[1:]]
        for kind, figures in PAPER.items()
    ]
    return found + [
        [name] + [f"{result[c]:.4f}" for c in COLUMNS[1:]] for name, result in results.items()
    ]


def main() -> None:
    """Run both, keep the record, print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m experiments.nmf_orl", description=__doc__)
    parser.add_argument("--data", help="folder with the real data (default: GROUPSPARSE_DATA)")
    parser.add_argument("--rank", type=int, default=RANK)
    parser.add_argument("--iterations", type=int, default=200)
    options = parser.parse_args()
    began = time.perf_counter()
    results: dict[str, Any] = run(
        common.data_folder(options.data), options.rank, options.iterations
    )
    parameters = {"rank": options.rank, "iterations": options.iterations}
    record.save(
        "nmf_orl", results, seconds=time.perf_counter() - began, seed=0, parameters=parameters
    )
    print(report(results))


if __name__ == "__main__":
    main()
