"""The projection of float32 matrices against its floor, `numpy.copyto`: one read and one write."""

from __future__ import annotations

from typing import Any

import numpy as np

import groupsparse as gs
from benchmarks.sorting import project_rows_by_sorting
from benchmarks.timing import Contender, side_by_side
from experiments.tables import table

SEED = 0
SIDES = {4: 1024, 16: 2048, 64: 4096}  # MiB of a square float32 matrix: length of its side
TARGETS = (0.5, 0.7, 0.9, 0.95, 0.99)
AXES = {"rows": 1, "columns": 0}
_TIMED = ("copy", "project_", "project_ start", "project", "project start")


def run(quick: bool) -> dict[str, Any]:
    """Time every size, target and axis; then sorting, once for each size."""
    sides = {4: SIDES[4]} if quick else SIDES
    targets = (0.9,) if quick else TARGETS
    cases = [
        _case(mib, side, target, vectors)
        for mib, side in sides.items()
        for target in targets
        for vectors in AXES
    ]
    return {"cases": cases, "sorting": [_sorting(mib, side) for mib, side in sides.items()]}


def _matrix(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix and a nearby one, as a training step or an NMF iteration would give."""
    random = np.random.default_rng(SEED)
    matrix = random.standard_normal((side, side), dtype=np.float32)
    noise = random.standard_normal((side, side), dtype=np.float32)
    return matrix, matrix + np.float32(0.01) * noise


def _case(mib: int, side: int, target: float, vectors: str) -> dict[str, Any]:
    axis = AXES[vectors]
    matrix, nearby = _matrix(side)
    start = gs.solve(nearby, target, axis=axis).multiplier
    out, work = np.empty_like(matrix), np.empty_like(matrix)

    def refill() -> None:
        np.copyto(work, matrix)

    seconds = side_by_side(
        {
            "copyto": lambda: np.copyto(out, matrix),
            "copy": matrix.copy,
            "project_": Contender(lambda: gs.project_(work, target, axis=axis), refill),
            "project_ start": Contender(
                lambda: gs.project_(work, target, axis=axis, start=start), refill
            ),
            "project": lambda: gs.project(matrix, target, axis=axis),
            "project start": lambda: gs.project(matrix, target, axis=axis, start=start),
        }
    )
    cold = gs.solve(matrix, target, axis=axis)
    return {
        "mib": mib,
        "target": target,
        "vectors": vectors,
        "kernel": cold.kernel,
        "passes": cold.passes,
        "passes start": gs.solve(matrix, target, axis=axis, start=start).passes,
        "seconds": seconds,
    }


def _sorting(mib: int, side: int) -> dict[str, Any]:
    matrix, _ = _matrix(side)
    target = 0.9
    seconds = side_by_side(
        {
            "project": lambda: gs.project(matrix, target),
            "numpy.sort": lambda: np.sort(np.abs(matrix), axis=1),
            "sort-based projection": lambda: project_rows_by_sorting(matrix, target),
        },
        least=3,
    )
    return {"mib": mib, "seconds": seconds}


def report(results: dict[str, Any]) -> str:
    """Return the tables: times the floor for each case, and the distance to sorting."""
    rows = []
    for case in results["cases"]:
        seconds = case["seconds"]
        ratios = [f"{seconds[name] / seconds['copyto']:.2f}" for name in _TIMED]
        milliseconds = f"{1e3 * seconds['copyto']:.2f}"
        passes = f"{case['passes']} / {case['passes start']}"
        rows.append([case["mib"], case["vectors"], case["target"], milliseconds, *ratios, passes])
    header = ["MiB", "vectors", "hoyer", "copyto ms", *_TIMED, "passes cold / start"]
    kernels = ", ".join(sorted({case["kernel"] for case in results["cases"]}))
    sorting = [
        [
            entry["mib"],
            f"{1e3 * entry['seconds']['project']:.1f}",
            f"{entry['seconds']['numpy.sort'] / entry['seconds']['project']:.1f}",
            f"{entry['seconds']['sort-based projection'] / entry['seconds']['project']:.1f}",
        ]
        for entry in results["sorting"]
    ]
    return "\n\n".join(
        [
            "Square float32 matrices, standard normal; the figures are times `numpy.copyto` into "
            "a buffer that exists already. `project_` works in place on a fresh copy (the copying "
            "is not timed); `project` allocates what it returns, and so does `copy`, which is "
            "`matrix.copy()`: the largest results lie in fresh memory, which costs nearly as much "
            "again as writing to it; `start` is the multiplier of the same matrix with 1 % of "
            f"noise. Kernel: {kernels}.",
            table(header, rows),
            "How many times longer sorting takes, hoyer 0.9, rows: `numpy.sort` of the magnitudes "
            "alone, and a whole projection written around it (`benchmarks/sorting.py`).",
            table(["MiB", "project ms", "numpy.sort", "sort-based projection"], sorting),
        ]
    )
