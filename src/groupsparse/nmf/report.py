"""The line that a verbose fit prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .alternating import Callback, Progress

Measures = Callable[[Progress], dict[str, float]]


def printer(
    verbose: int, max_iter: int, max_time: float | None, measures: Measures
) -> Callback | None:
    """A callback that prints error, sparsity and the time left; None where none is wanted.

    ``measures`` returns the Hoyer measures to print, by factor.
    """
    if not verbose:
        return None
    every = 10 if verbose == 1 else 1

    def show(progress: Progress) -> None:
        if progress.iteration % every and progress.iteration != max_iter:
            return
        left = progress.seconds / progress.iteration * (max_iter - progress.iteration)
        if max_time is not None:
            left = min(left, max(max_time - progress.seconds, 0.0))
        sparsity = "  ".join(f"hoyer({name}) {x:.4f}" for name, x in measures(progress).items())
        print(
            f"iteration {progress.iteration}/{max_iter}  error {100 * progress.loss:.4f} %  "
            f"{sparsity}  at most {left:.1f} s left"
        )

    return show


def combined(*callbacks: Callback | None) -> Callback | None:
    """All callbacks in one; any of them may end the fit."""
    active = [callback for callback in callbacks if callback is not None]
    if not active:
        return None

    def call_all(progress: Progress) -> Any:
        answers = [callback(progress) for callback in active]  # every one is called
        return any(answers)

    return call_all
