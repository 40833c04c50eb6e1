"""Callbacks for training frameworks; each module needs its framework only when imported.

A callback takes a function that attaches something to a model and its optimizers once they exist,
and gives back what it attached: an `Inducer`, a `GradualMagnitude`, or ``masks.frozen(...)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


class Attached(Protocol):
    """Something with hooks on optimizers, which can be taken back."""

    def remove(self) -> None:
        """Take the hooks back."""


Attach = Callable[[nn.Module, list[Optimizer]], Attached]


class Attachment:
    """One attached thing over the life of a training run, and its state in checkpoints.

    Frameworks restore callbacks before there are optimizers to attach to; the state waits here.
    """

    def __init__(self, attach: Attach) -> None:
        self._attach = attach
        self._waiting: dict[str, Any] | None = None
        self.attached: Attached | None = None

    def begin(self, model: nn.Module, optimizers: list[Optimizer]) -> None:
        """Attach, and resume from a state that was loaded before."""
        self.end()
        self.attached = self._attach(model, optimizers)
        load = getattr(self.attached, "load_state_dict", None)
        if self._waiting and load is not None:
            load(self._waiting)
        self._waiting = None

    def end(self) -> None:
        """Take the hooks back."""
        if self.attached is not None:
            self.attached.remove()

    def state_dict(self) -> dict[str, Any]:
        """The state of what is attached; empty where it has none."""
        save = getattr(self.attached, "state_dict", None)
        return {} if save is None else dict(save())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state until `begin`."""
        self._waiting = dict(state)
