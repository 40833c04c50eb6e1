"""Competitors timed in turns within one process, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Contender:
    """Something to time: `call`, and `prepare`, which runs untimed before each call."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None


def side_by_side(
    contenders: Mapping[str, Callable[[], object] | Contender],
    *,
    budget: float = 2.0,
    least: int = 5,
    most: int = 1000,
) -> dict[str, float]:
    """Return the median seconds of each contender, called in turns.

    One untimed round warms caches and compiles; then rounds go on until `budget` seconds are spent,
    at least `least` and at most `most` of them.
    """
    field = {
        name: c if isinstance(c, Contender) else Contender(c) for name, c in contenders.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in field}
    for contender in field.values():
        _once(contender)
    began = time.perf_counter()
    for done in range(most):
        if done >= least and time.perf_counter() - began > budget:
            break
        for name, contender in field.items():
            seconds[name].append(_once(contender))
    return {name: statistics.median(times) for name, times in seconds.items()}


def _once(contender: Contender) -> float:
    if contender.prepare is not None:
        contender.prepare()
    began = time.perf_counter()
    contender.call()
    return time.perf_counter() - began
