"""``groupsparse bench``: how fast the projection is on this machine, against what bounds it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer

from ..projection import project
from .console import output, progress, show_table

CASES = (  # vectors, length, dtype
    (64, 144, "float64"),
    (512, 4608, "float32"),
    (1000, 1000, "float64"),
    (16, 1 << 18, "float32"),
    (1, 1 << 22, "float32"),
)
LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 3, 200, 0.35


def bench(
    hoyer: Annotated[float, typer.Option(min=0.0, max=1.0, help="The target.")] = 0.8,
) -> None:
    """Time the projection on this machine.

    It is compared with copying the same data, the floor of anything that returns a new array, and
    with sorting it, which a projection that orders its entries has to pay. The three take turns,
    and the median of each counts. Takes a few seconds.
    """
    from ..kernels.pool import cores

    rows = []
    with progress("measuring", len(CASES)) as advance:
        for vectors, length, dtype in CASES:
            advance(f"{vectors} x {length}")
            data = np.random.default_rng(0).standard_normal((vectors, length)).astype(dtype)
            projected, copied, ordered = _medians(data, hoyer)
            rows.append(
                (
                    f"{vectors} x {length:,}",
                    dtype,
                    f"{1e3 * projected:.3f} ms",
                    f"{1e3 * copied:.3f} ms",
                    f"{1e3 * ordered:.3f} ms",
                    f"{projected / copied:.1f}",
                    f"{projected / ordered:.2f}",
                )
            )
            advance("", 1)
    columns = ("vectors", "dtype", "Project", "Copy", "Sort", "Project/copy", "Project/sort")
    show_table(columns, rows)
    output().print(
        f"Hoyer {hoyer}, normal entries, {cores()} threads for the projection, one for the others; "
        f"NumPy {np.__version__} on {platform.machine()}; medians, in turns",
        soft_wrap=True,
    )


def _medians(data: np.ndarray[tuple[int, int], np.dtype[np.floating]], hoyer: float) -> list[float]:
    """Seconds of projecting, copying and sorting; they share whatever else the machine does."""
    target = np.empty_like(data)
    calls: list[Callable[[], object]] = [
        lambda: project(data, hoyer),
        lambda: np.copyto(target, data),
        lambda: np.sort(data, axis=1),
    ]
    seconds: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()  # compiles, and touches the memory
    began = time.perf_counter()
    while len(seconds[0]) < MOST_ROUNDS:
        if len(seconds[0]) >= LEAST_ROUNDS and time.perf_counter() - began > SECONDS:
            break
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [float(np.median(times)) for times in seconds]
