"""Induced GSP: the projection repeated during training, so that the network grows into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..errors import InvalidInput
from ..result import Projection
from .clock import Clock
from .hooks import as_optimizers, refuse_strangers
from .plan import Plan, groups_of
from .projecting import project_groups_
from .schedules import Schedule, Span, constant
from .standing import Standing

Start = float | Projection[Any]


class Inducer(Clock):
    """Project a model's parameters every so many optimizer steps.

    Parameters
    ----------
    model : torch.nn.Module
        As it is trained: wrapped (DDP, ``fully_shard``) before the inducer is made. Compiled models
        need nothing special.
    plan : Plan
        What is projected, and to which target.
    optimizer : Optimizer, several, or None
        Whose steps count; a hook on it does the work. None: call `step` by hand after each step,
        for instance where a CUDA graph replays the optimizer and hooks cannot run.
    every : int
        Optimizer steps between two projections.
    start, stop : int
        First and last step at which one may happen; the last one happens at ``stop`` itself.
    schedule : callable
        The share of the plan's targets at a progress from 0 (``start``) to 1 (``stop``):
        `constant`, `linear`, `cubic`, or any function.

    Attributes
    ----------
    steps : int
        Optimizer steps so far.
    projections : list of Projection
        The certificates of the latest projection, one per group of the plan.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Linear(64, 16)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with prune.Inducer(model, prune.Plan(0.7), optimizer, every=2) as inducer:
    ...     for _ in range(4):
    ...         model(torch.randn(8, 64)).square().mean().backward()
    ...         _ = optimizer.step()
    >>> inducer.steps, round(inducer.projections[0].hoyer, 4)
    (4, 0.7)
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        every: int = 150,
        start: int = 0,
        stop: int | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.span = Span(every, start, stop)
        self.schedule = constant() if schedule is None else schedule
        self.span.check(self.schedule)
        self.groups = groups_of(model, plan)
        self._standing = Standing(self.groups)
        self.steps = 0
        self.projections: list[Projection[Any]] = []
        self._starts: Sequence[Start] | None = None
        trained_by = [] if optimizer is None else as_optimizers(optimizer)
        if trained_by:
            planned = [m.target.parameter for group in self.groups for m in group.members]
            refuse_strangers(trained_by, planned)
        super().__init__(trained_by)

    def step(self) -> bool:
        """Count one optimizer step; project, and return True, if one is due."""
        self.steps += 1
        if not self.span.due(self.steps):
            return False
        self.project()
        return True

    def project(self) -> None:
        """Project now, to the target that the schedule has for the current step."""
        share = self.span.share(self.steps, self.schedule)
        targets = [share * group.hoyer for group in self.groups]
        found = self._standing.project_(targets, self._starts)
        if found is None:
            found = project_groups_(self.groups, targets, self._starts)
        self.projections = found
        # Not their multipliers: reading those would wait for the device, every time.
        self._starts = self.projections

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs so that training resumes bit for bit: plain numbers."""
        return {
            "steps": self.steps,
            "multipliers": None if self._starts is None else list(map(_multiplier, self._starts)),
            "groups": self._description(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume; the plan must be the one that the state was made with."""
        if not {"steps", "multipliers", "groups"} <= state.keys():
            raise InvalidInput(f"this is no state of an inducer: it has {sorted(state)}")
        if state["groups"] != self._description():
            raise InvalidInput("this state is from an inducer with another plan or another model")
        multipliers = state["multipliers"]
        self.steps = int(state["steps"])
        self._starts = None if multipliers is None else [float(mu) for mu in multipliers]

    def _description(self) -> list[list[Any]]:
        return [[g.hoyer, *(m.target.name for m in g.members)] for g in self.groups]


def _multiplier(start: Start) -> float:
    return float(start.multiplier if isinstance(start, Projection) else start)
