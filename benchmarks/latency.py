"""What a small problem, the first call of a process and the import cost."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

import groupsparse as gs
from benchmarks.timing import side_by_side
from experiments.tables import table

SEED = 0
_FIRST_CALL = """
import time, numpy, groupsparse
array = numpy.random.default_rng(0).standard_normal({shape}).astype("{dtype}")
began = time.perf_counter()
groupsparse.project(array, 0.8)
print(time.perf_counter() - began)
"""
_IMPORT = """
import time
began = time.perf_counter()
import {module}
print(time.perf_counter() - began)
"""
_FIRST_CALLS = {"10 x 100": (10, 100), "1000 x 1000": (1000, 1000)}


def run(quick: bool) -> dict[str, Any]:
    """Time calls on 10 vectors of length 100, first calls, and the import."""
    repeats = 1 if quick else 7
    return {
        "small": {dtype: _small(dtype) for dtype in ("float64", "float32")},
        "first": [
            {"shape": shape, "dtype": dtype, **_first(size, dtype, repeats)}
            for shape, size in _FIRST_CALLS.items()
            for dtype in ("float64", "float32")
        ],
        "import": {
            module: _fresh_process(_IMPORT.format(module=module), repeats)
            for module in ("numpy", "groupsparse")
        },
    }


def _small(dtype: str) -> dict[str, float]:
    array = np.random.default_rng(SEED).standard_normal((10, 100)).astype(dtype)
    start = gs.solve(array, 0.8).multiplier
    return side_by_side(
        {
            "project": lambda: gs.project(array, 0.8),
            "project start": lambda: gs.project(array, 0.8, start=start),
            "solve": lambda: gs.solve(array, 0.8),
        },
        most=5000,
    )


def _first(shape: tuple[int, int], dtype: str, repeats: int) -> dict[str, float]:
    """Return the first call's seconds without and with numba's compile cache."""
    program = _FIRST_CALL.format(shape=shape, dtype=dtype)
    cold = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(_fresh_process(program, 1, cache))
            cached = _fresh_process(program, 1, cache)
    return {"cold": statistics.median(cold), "cached": cached}


def _fresh_process(program: str, repeats: int, cache: str | None = None) -> float:
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    seconds = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(float(done.stdout))
    return statistics.median(seconds)


def report(results: dict[str, Any]) -> str:
    """Return the three tables."""
    small = [
        [dtype, *(f"{1e6 * seconds:.1f}" for seconds in times.values())]
        for dtype, times in results["small"].items()
    ]
    first = [
        [f"{case['shape']} {case['dtype']}", f"{case['cold']:.2f}", f"{case['cached']:.3f}"]
        for case in results["first"]
    ]
    imports = [[name, f"{1e3 * seconds:.0f}"] for name, seconds in results["import"].items()]
    return "\n\n".join(
        [
            "10 vectors of length 100, hoyer 0.8, microseconds a call:",
            table(["dtype", *results["small"]["float64"]], small),
            "The first `project` of a process, seconds, numba's cache empty and filled (the import "
            "is not counted):",
            table(["array", "cache empty", "cache filled"], first),
            "Import in a fresh process, milliseconds (groupsparse includes numpy):",
            table(["module", "ms"], imports),
        ]
    )
