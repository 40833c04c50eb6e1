"""Magnitude pruning: the smallest entries go, at once (Han et al., 2015) or bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...errors import InvalidInput
from ..clock import Clock
from ..competing import checked_sparsity, competitions_of
from ..cutting import cut
from ..freezing import Frozen
from ..hooks import as_optimizers, refuse_strangers
from ..masks import Masks
from ..schedules import Schedule, Span, cubic
from ..targets import DEFAULT_TARGETS, Pattern, as_patterns, select


def magnitude(
    model: nn.Module,
    sparsity: float,
    *,
    scope: str = "model",
    floor: int = 0,
    targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
    ignore: Iterable[Pattern] | Pattern = (),
) -> Masks:
    """Zero the entries with the smallest absolute values (Han et al., 2015): `cut`, by its name.

    Parameters
    ----------
    model, sparsity, scope, floor, targets, ignore
        As in `cut`.

    Returns
    -------
    Masks
        Where the zeros are.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> prune.baselines.magnitude(torch.nn.Linear(10, 10), 0.9, scope="layer").zeros
    90
    """
    return cut(model, sparsity, scope=scope, floor=floor, targets=targets, ignore=ignore)


class GradualMagnitude(Clock):
    """Magnitude pruning that raises its sparsity during training (Zhu and Gupta, 2017).

    Every so many steps the smallest entries of the whole model, or of each layer, become zero, and
    stay so until the next time. What has gone stays gone: a zero is the smallest entry there is.

    Parameters
    ----------
    model : torch.nn.Module
        As it is trained.
    optimizer : Optimizer, or several
        Whose steps count, and which must not bring zeros back.
    sparsity : float
        The fraction of zeros at the end.
    every, start, stop : int
        When pruning happens, in optimizer steps; the last one is at ``stop``.
    schedule : callable
        The share of the sparsity at a progress in [0, 1]; the paper's is `cubic`.
    scope, floor, targets, ignore
        As in `cut`.

    Attributes
    ----------
    masks : Masks or None
        The current zeros; they are frozen until `remove`.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> pruner = prune.baselines.GradualMagnitude(model, optimizer, 0.9, every=2, stop=6)
    >>> for _ in range(6):
    ...     model(torch.randn(4, 10)).square().mean().backward()
    ...     _ = optimizer.step()
    >>> pruner.masks.zeros
    90
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        sparsity: float,
        *,
        every: int = 150,
        start: int = 0,
        stop: int,
        schedule: Schedule | None = None,
        scope: str = "model",
        floor: int = 0,
        targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
        ignore: Iterable[Pattern] | Pattern = (),
    ) -> None:
        self.sparsity = checked_sparsity(sparsity)
        self.span = Span(every, start, stop)
        self.schedule = cubic() if schedule is None else schedule
        self.span.check(self.schedule)
        self.masks: Masks | None = None
        self.steps = 0
        self._model = model
        self._cut: dict[str, Any] = {
            "scope": scope,
            "floor": floor,
            "targets": as_patterns(targets),
            "ignore": as_patterns(ignore),
        }
        trained_by = as_optimizers(optimizer)
        found = select(model, targets, ignore)
        # What would be an error at the first cut, hours later, is one now.
        competitions_of(found, None, self.sparsity, scope, floor)
        refuse_strangers(trained_by, [target.parameter for target in found])
        self._frozen = Frozen(trained_by)
        super().__init__(trained_by)

    def step(self) -> bool:
        """Count one optimizer step; prune, and return True, if it is time."""
        self.steps += 1
        if not self.span.due(self.steps):
            return False
        self.prune()
        return True

    def prune(self) -> None:
        """Prune now, to the sparsity that the schedule has for the current step."""
        share = self.span.share(self.steps, self.schedule)
        self.masks = cut(self._model, share * self.sparsity, **self._cut)
        self._frozen.hold(self.masks.pairs(self._model))

    def remove(self) -> None:
        """Stop pruning and let the zeros go; ``masks.frozen`` holds them."""
        super().remove()
        self._frozen.remove()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: the zeros themselves are in the model."""
        return {"steps": self.steps, "sparsity": self.sparsity, "pruned": self.masks is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume; load the model's own state before this."""
        if not {"steps", "sparsity", "pruned"} <= state.keys():
            raise InvalidInput(f"this is no state of a gradual pruner: it has {sorted(state)}")
        if state["sparsity"] != self.sparsity:
            raise InvalidInput(f"this state is from a run to sparsity {state['sparsity']}")
        self.steps = int(state["steps"])
        if state["pruned"]:
            where = {key: self._cut[key] for key in ("targets", "ignore")}
            self.masks = Masks.of(self._model, **where)
            self._frozen.hold(self.masks.pairs(self._model))
