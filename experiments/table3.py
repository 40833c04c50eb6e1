"""The paper's Table 3: how much work the projection needs.

100 vectors of length 1000 with standard normal entries, 100 draws, precision 1e-4. One iteration of
the paper evaluates g and its slope once, which is one pass over all the data. Ours are counted
twice: iterations of the root finder, and full passes over the data, the one that writes the answer
included::

    python -m experiments.table3
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import groupsparse as gs
from experiments import record
from experiments.tables import table

SEED = 0
VECTORS, LENGTH = 100, 1000
PRECISION = 1e-4
PAPER_INITIAL = {"average": 0.2086, "maximum": 0.2101}
PAPER = {  # hoyer: iterations
    0.7: {"average": 3.88, "maximum": 4},
    0.8: {"average": 3.78, "maximum": 4},
    0.9: {"average": 3.98, "maximum": 4},
    0.95: {"average": 3.75, "maximum": 4},
    0.99: {"average": 3.77, "maximum": 4},
}


def run(draws: int, kernel: str | None = None) -> dict[str, Any]:
    """Project `draws` random sets to every target of the table and count."""
    random = np.random.default_rng(SEED)
    sets = [random.standard_normal((VECTORS, LENGTH)) for _ in range(draws)]
    return {
        "initial": _summary([gs.average_hoyer(vectors) for vectors in sets]),
        "targets": [_count(sets, target, kernel) for target in PAPER],
    }


def _count(sets: list[np.ndarray], target: float, kernel: str | None) -> dict[str, Any]:
    found = [gs.solve(vectors, target, tol=PRECISION, kernel=kernel) for vectors in sets]
    return {
        "hoyer": target,
        "kernel": found[0].kernel,
        "paper iterations": PAPER[target],
        "iterations": _summary([p.iterations for p in found]),
        "passes": _summary([p.passes for p in found]),
        "largest residual": max(abs(p.residual) for p in found),
    }


def _summary(values: list[float]) -> dict[str, float]:
    return {"average": float(np.mean(values)), "maximum": float(np.max(values))}


def report(results: dict[str, Any]) -> str:
    """Return the table: the paper's figures beside ours."""
    targets = results["targets"]
    rows = []
    for statistic in ("average", "maximum"):
        for label, initial, key in (
            ("paper, iterations", PAPER_INITIAL, "paper iterations"),
            ("ours, iterations", results["initial"], "iterations"),
            ("ours, passes", None, "passes"),
        ):
            start = f"{100 * initial[statistic]:.2f} %" if initial else ""
            figures = [f"{entry[key][statistic]:.2f}" for entry in targets]
            rows.append([f"{statistic}: {label}", start, *figures])
    residuals = [f"{entry['largest residual']:.0e}" for entry in targets]
    rows.append(["largest residual, ours", "", *residuals])
    return table(["", "before", *(f"s = {entry['hoyer']}" for entry in targets)], rows)


def main() -> None:
    """Print the table and write its record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.table3", description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--kernel", help="by name; the library chooses unless told")
    options = parser.parse_args()
    began = time.perf_counter()
    results = run(options.draws, options.kernel)
    seconds = time.perf_counter() - began
    path = record.save("table3", results, seconds=seconds, seed=SEED, parameters=vars(options))
    path.with_suffix(".md").write_text(report(results) + "\n", encoding="utf-8")
    print(report(results), f"\n{path.relative_to(record.ROOT)}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
