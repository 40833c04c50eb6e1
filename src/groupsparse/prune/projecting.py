"""The projection of a model's parameters: single-shot GSP, and one step of induced GSP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidInput, NonFiniteInput
from ..projection import project_each_
from ..result import Projection
from .plan import Group, Member, Plan
from .sharding import gather, is_sharded, local, scatter_

VALUES = ("projected", "original")


@torch.no_grad()
def project_(
    model: nn.Module, plan: Plan | None = None, *, values: str = "projected"
) -> list[Projection[Any]]:
    """Project a model's parameters in place, once: single-shot GSP.

    Each vector c becomes z = (xᵀ|c|) sign(c) ∘ x, where the unit vectors x ≥ 0 are the argmax of
    Σ λ xᵀ|c| over all those whose average Hoyer measure, in every group of the plan, is its target;
    λ is 1 or the layer's weight.

    Parameters
    ----------
    model : torch.nn.Module
        A model or a single layer. Where an error is raised it is as it was.
    plan : Plan, optional
        What is projected, and to which target.
    values : {"projected", "original"}
        Whether surviving entries get their projected values, or only the mask is taken from the
        projection and survivors keep the values that they had. The latter holds a copy of the
        planned parameters until it returns.

    Returns
    -------
    list of Projection
        The certificate of each group. With ``values="original"`` it is that of the projection
        from which the mask was taken.

    Examples
    --------
    >>> import torch
    >>> import groupsparse as gs
    >>> from groupsparse import prune
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 8))
    >>> [p] = prune.project_(model, prune.Plan(hoyer=0.7))
    >>> abs(p.residual) < 1e-6
    True
    """
    if values not in VALUES:
        raise InvalidInput(f"values is {values!r}; expected one of {VALUES}")
    groups = (Plan() if plan is None else plan).resolve(model)
    parameters = [local(m.target.parameter) for group in groups for m in group.members]
    originals = [p.clone() for p in parameters] if values == "original" else []
    projections = project_groups_(groups, [group.hoyer for group in groups], None)
    for parameter, original in zip(parameters, originals, strict=False):
        parameter.copy_(original.masked_fill_(parameter == 0, 0))
    return projections


@torch.no_grad()
def project_groups_(
    groups: Sequence[Group], targets: Sequence[float], starts: Sequence[float] | None
) -> list[Projection[Any]]:
    """Project groups to these targets, from these multipliers; all groups or, on an error, none.

    Groups of one parameter are solved together in one call, so that a network with one target per
    layer costs one call, as does a network with one target.
    """
    guesses: Sequence[float | None] = [None] * len(groups) if starts is None else starts
    members = [member for group in groups for member in group.members]
    # What is sharded is gathered by everybody, projected by everybody, and everybody keeps a part.
    values = {member.target.name: gather(member.target.parameter) for member in members}
    alone = [i for i, group in enumerate(groups) if len(group.members) == 1]
    together = [i for i, group in enumerate(groups) if len(group.members) > 1]
    if len(together) + bool(alone) > 1:
        _refuse_non_finite(values)  # a later call could fail after an earlier one has written
    found: dict[int, Projection[Any]] = {}
    if alone:
        names = [groups[i].members[0].target.name for i in alone]
        hoyers = {name: targets[i] for name, i in zip(names, alone, strict=True)}
        begin = {name: guesses[i] for name, i in zip(names, alone, strict=True)}
        singles = [groups[i].members[0] for i in alone]
        found.update(zip(alone, _project(singles, values, hoyers, begin), strict=True))
    for i in together:
        (found[i],) = _project(groups[i].members, values, targets[i], guesses[i], shared=True)
    for member in members:
        if is_sharded(member.target.parameter):
            scatter_(member.target.parameter, values[member.target.name])
    return [found[i] for i in range(len(groups))]


def _refuse_non_finite(values: Mapping[str, Tensor]) -> None:
    """Raise for the first parameter that holds a NaN or an infinity."""
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise NonFiniteInput(f"{name} holds a NaN or an infinity; expected finite numbers")


def _project(
    members: Sequence[Member],
    values: Mapping[str, Tensor],
    hoyer: Any,
    start: Any,
    *,
    shared: bool = False,
) -> list[Projection[Any]]:
    """One call of the core, on the parameters' own memory."""
    views = [member.view(values[member.target.name]) for member in members]
    scaled = [_scaled(view, member) for (view, _), member in zip(views, members, strict=True)]
    weights = {
        member.target.name: _weights(member, view)
        for member, (view, _) in zip(members, views, strict=True)
    }
    projections = project_each_(
        dict(zip(weights, scaled, strict=True)),
        hoyer,
        axis=[axes for _, axes in views],
        weights=weights if any(w is not None for w in weights.values()) else None,
        shared=shared,
        start=start,
    )
    for (view, _), tensor, member in zip(views, scaled, members, strict=True):
        if tensor is not view:
            _unscale(view, tensor, member)
    return projections


def _weights(member: Member, view: Tensor) -> Tensor | None:
    weights = member.weights
    if weights is not None and weights.shape == member.target.parameter.shape:
        return weights.reshape(view.shape)
    return weights


def _scaled(view: Tensor, member: Member) -> Tensor:
    """λ xᵀ|c| = xᵀ|λ c|: a layer that is dear to change is projected enlarged."""
    return view if member.price == 1.0 else view * member.price


def _unscale(view: Tensor, projected: Tensor, member: Member) -> None:
    # Where nothing changed, the entry itself stays: scaling and back would round it.
    same = projected == view * member.price
    view.copy_(torch.where(same, view, projected / member.price))
