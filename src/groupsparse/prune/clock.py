"""Optimizer steps, counted through hooks."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from .hooks import Hooks


class Clock(Hooks):
    """Counts optimizer steps through hooks of its own and says when one is due.

    With several optimizers one step is over when each of them has stepped. A step that a GradScaler
    skips does not count, and gradient accumulation counts its one step.
    """

    def __init__(self, optimizers: list[Optimizer]) -> None:
        super().__init__(optimizers)
        self._stepped: set[int] = set()
        for each in self._optimizers:
            self._handles.append(each.register_step_post_hook(self._after))

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        if _skipped(optimizer):
            return
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self._stepped.clear()
            self.step()

    def step(self) -> Any:
        """What happens after an optimizer step."""
        raise NotImplementedError


def _skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler left it to a fused optimizer to see that it must not move.

    Of others the scaler does not call ``step`` at all, and waits for the device to know, as here.
    """
    infinite = getattr(optimizer, "found_inf", None)
    return infinite is not None and bool(infinite)
