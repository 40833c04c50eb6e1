"""Hooks on optimizers: whose they are, and how they are taken back."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import InvalidInput


class Hooks:
    """What holds hooks on optimizers of the user: it takes back its own and no others."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._optimizers = optimizers
        self._handles: list[RemovableHandle] = []

    def remove(self) -> None:
        """Take the hooks back; nothing happens by itself from now on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def as_optimizers(given: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """One optimizer or several, each without the wrapper that Lightning or Accelerate puts on."""
    several = [given] if isinstance(given, Optimizer) or hasattr(given, "optimizer") else given
    optimizers = [_unwrapped(each) for each in several]
    if not optimizers:
        raise InvalidInput("there is no optimizer in the list; expected at least one")
    return optimizers


def refuse_strangers(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> None:
    """Raise where no optimizer trains any of these; one of several may train the biases only."""
    trained = [group["params"] for each in optimizers for group in each.param_groups]
    held = {id(parameter) for group in trained for parameter in group}
    if held.isdisjoint(map(id, parameters)):
        raise InvalidInput(
            "the optimizer holds none of the parameters that are to be pruned; "
            "expected the one that trains this model"
        )


def _unwrapped(optimizer: Any) -> Optimizer:
    # The wrappers are Optimizers by type, but the hooks that fire are those of the one inside.
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise InvalidInput(f"optimizer is {optimizer!r}; expected a torch.optim.Optimizer")
    return optimizer
