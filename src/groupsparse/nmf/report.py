"""The line that a verbose fit prints."""

from __future__ import annotations

from typing import Any

from .alternating import Callback, Progress


def printer(verbose: int, max_iter: int, max_time: float | None) -> Callback | None:
    """A callback that prints error, sparsity and the time left; None where none is wanted."""
    if not verbose:
        return None
    every = 10 if verbose == 1 else 1

    def show(progress: Progress) -> None:
        if progress.iteration % every and progress.iteration != max_iter:
            return
        left = progress.seconds / progress.iteration * (max_iter - progress.iteration)
        if max_time is not None:
            left = min(left, max(max_time - progress.seconds, 0.0))
        print(
            f"iteration {progress.iteration}/{max_iter}  error {100 * progress.loss:.4f} %  "
            f"hoyer(H) {progress.hoyer:.4f}  at most {left:.1f} s left"
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
