"""The same CUDA parameters, projected again and again: what a call must know is settled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..places import place
from ..result import Projection
from .plan import Group
from .projecting import own_weights
from .sharding import is_sharded

if TYPE_CHECKING:
    from ..device import Projector


class Standing:
    """Groups with the core's plan for them, and views of their parameters, kept between calls.

    A plan holds workspace, about a hundredth of the parameters. There is none, and `project_`
    returns None, where parameters are elsewhere, sharded or enlarged, or where their groups take
    more than one call. The parameters may get other memory at any time.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._members = [member for group in groups for member in group.members]
        self._parameters = [member.target.parameter for member in self._members]
        self._names = [member.target.name for member in self._members]
        self._shared = len(self._members) > len(groups)
        self._simple = len(groups) in (1, len(self._members)) and not any(
            member.price != 1.0 or is_sharded(member.target.parameter) for member in self._members
        )
        self._seen: list[Tensor] = []  # the parameters, as they lay when the views were made
        self._views: list[Tensor] = []
        self._axes: list[Any] = []
        self._lie: list[tuple[Any, ...]] = []
        self._weights: list[Tensor | None] | None = None
        self._there = False
        self._plan: Projector | None = None
        self._made_for: tuple[Any, ...] = ()

    @torch.no_grad()
    def project_(
        self, targets: Sequence[float], starts: Sequence[float | Projection[Any]] | None
    ) -> list[Projection[Any]] | None:
        """Queue the projection to these targets; None, and nothing done, where it does not apply.

        It is that of `project_groups_`, certificates included, and waits for nothing.
        """
        if not self._simple:
            return None
        if not self._seen or not all(map(Tensor.is_set_to, self._parameters, self._seen)):
            self._look()
        if not self._there:
            return None
        plan = self._plan_for(_stream(self._parameters[0]))
        if plan is None:
            return None
        from ..device.verbs import run

        plan.bind(self._views, None, self._weights)  # memory may be new where all else is not
        shown = dict(zip(self._names, self._views, strict=True)) if self._shared else None
        return run(plan, targets, starts, shown)

    def _look(self) -> None:
        """Make the views anew."""
        from ..device.verbs import lies

        self._seen = [parameter.detach() for parameter in self._parameters]
        self._there = _on_device(self._seen)
        if not self._there:
            return
        pairs = [m.view(seen) for m, seen in zip(self._members, self._seen, strict=True)]
        self._views = [view for view, _ in pairs]
        self._axes = [axes for _, axes in pairs]
        weights = [own_weights(m, v) for m, v in zip(self._members, self._views, strict=True)]
        self._weights = weights if any(w is not None for w in weights) else None
        self._lie = [lies(view) for view in self._views]

    def _plan_for(self, stream: int) -> Projector | None:
        """The plan for the views as they lie; its workspace belongs to one stream."""
        if self._made_for != (stream, self._lie):
            from ..device import Projector

            self._plan = None  # its memory is free for the next one
            self._made_for = (stream, self._lie)
            plan = Projector(
                self._views, axis=self._axes, shared=self._shared, weights=self._weights,
                names=[f"tensors[{name!r}]" for name in self._names],
            )  # fmt: skip
            self._plan = None if plan.staged else plan  # copies of parameters are not kept
        return self._plan


def _on_device(parameters: Sequence[Tensor]) -> bool:
    """Whether the kernels of the core take them."""
    return place(parameters, None) == "triton"


def _stream(parameter: Tensor) -> int:
    if not parameter.is_cuda:
        return 0
    return int(torch.cuda.current_stream(parameter.device).cuda_stream)
