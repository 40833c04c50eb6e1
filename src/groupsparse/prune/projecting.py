"""The projection of a model's parameters: single-shot GSP, and one step of induced GSP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidInput, NonFiniteInput
from ..projection import project_each_
from ..result import Projection
from .plan import Group, Member, Plan, groups_of
from .sharding import is_sharded, local

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
    groups = groups_of(model, plan)
    parameters = [local(m.target.parameter) for group in groups for m in group.members]
    _refuse_on_device(groups)
    originals = [p.clone() for p in parameters] if values == "original" else []
    projections = project_groups_(groups, [group.hoyer for group in groups], None)
    for parameter, original in zip(parameters, originals, strict=False):
        parameter.copy_(original.masked_fill_(parameter == 0, 0))
    return projections


def _refuse_on_device(groups: Sequence[Group]) -> None:
    """Raise for CUDA parameters what the core, which does not wait for them, cannot raise."""
    targets = [member.target for group in groups for member in group.members]
    waiting = [t for t in targets if t.parameter.is_cuda and not is_sharded(t.parameter)]
    if not waiting:
        return
    fine = torch.stack([t.parameter.isfinite().all() for t in waiting]).tolist()
    for target in (t for t, good in zip(waiting, fine, strict=True) if not good):
        at = tuple((~target.parameter.isfinite()).nonzero()[0].tolist())
        raise NonFiniteInput(
            f"{target.name}: index {at} is {float(target.parameter[at])}; expected finite numbers"
        )


@torch.no_grad()
def project_groups_(
    groups: Sequence[Group],
    targets: Sequence[float],
    starts: Sequence[float | Projection[Any]] | None,
) -> list[Projection[Any]]:
    """Project groups to these targets, from these multipliers; all groups or, on an error, none.

    Groups of one parameter are solved together in one call, so that a network with one target per
    layer costs one call, as does a network with one target. Where parameters are sharded, every
    process projects the parts that it holds, all groups side by side; nothing is gathered.
    """
    guesses: Sequence[float | Projection[Any] | None] = (
        [None] * len(groups) if starts is None else starts
    )
    members = [member for group in groups for member in group.members]
    if any(is_sharded(member.target.parameter) for member in members):
        return _project_sharded(groups, targets, guesses)
    alone = [i for i, group in enumerate(groups) if len(group.members) == 1]
    turns = [[i] for i, group in enumerate(groups) if len(group.members) > 1]
    turns += [alone] if alone else []
    if len(turns) > 1:
        _refuse_non_finite(members)  # a later turn could fail after an earlier one has written
    found: dict[int, Projection[Any]] = {}
    for turn in turns:
        chosen = [groups[i] for i in turn]
        answers = _project(chosen, [targets[i] for i in turn], [guesses[i] for i in turn])
        found.update(zip(turn, answers, strict=True))
    return [found[i] for i in range(len(groups))]


def _refuse_non_finite(members: Sequence[Member]) -> None:
    """Raise for the first parameter that holds a NaN or an infinity."""
    for member in members:
        if not bool(torch.isfinite(member.target.parameter).all()):
            raise NonFiniteInput(
                f"{member.target.name} holds a NaN or an infinity; expected finite numbers"
            )


def _project_sharded(
    groups: Sequence[Group],
    targets: Sequence[float],
    starts: Sequence[float | Projection[Any] | None],
) -> list[Projection[Any]]:
    """One call of the core, for all groups, by every process that holds a part of them."""
    from .. import sharded  # not every PyTorch is built with torch.distributed

    values: list[Any] = []
    for group in groups:
        own = {m.target.name: m.target.parameter.detach() for m in group.members}
        values.append(own if len(own) > 1 else own.popitem()[1])
    return sharded.project_groups_(
        [[sharded.Member(*_described(m)) for m in group.members] for group in groups],
        targets,
        [start.multiplier if isinstance(start, Projection) else start for start in starts],
        values,
    )


def _described(member: Member) -> tuple[Any, ...]:
    """What the core has to know about a member, without a view: a sharded tensor may have none."""
    parameter = member.target.parameter
    view, axes = member.view(torch.empty(parameter.shape, device="meta"))
    fold = None
    if view.ndim > parameter.ndim:  # the groups of a transposed convolution lie along axis 0
        fold, axes = view.shape[1], (0, *(axis - 1 for axis in axes if axis > 1))
    return parameter, axes, member.target.name, member.weights, member.price, fold


def _project(
    groups: Sequence[Group],
    targets: Sequence[float],
    starts: Sequence[float | Projection[Any] | None],
) -> list[Projection[Any]]:
    """One call of the core, on the parameters' own memory: groups of one member, or one group."""
    members = [member for group in groups for member in group.members]
    names = [member.target.name for member in members]
    shared = len(members) > len(groups)
    views = [member.view(member.target.parameter.detach()) for member in members]
    scaled = [_scaled(view, member) for (view, _), member in zip(views, members, strict=True)]
    weights = [own_weights(member, view) for (view, _), member in zip(views, members, strict=True)]
    projections = project_each_(
        dict(zip(names, scaled, strict=True)),
        targets[0] if shared else dict(zip(names, targets, strict=True)),
        axis=[axes for _, axes in views],
        weights=dict(zip(names, weights, strict=True)) if any(map(_given, weights)) else None,
        shared=shared,
        start=starts[0] if shared else dict(zip(names, starts, strict=True)),
    )
    for (view, _), tensor, member in zip(views, scaled, members, strict=True):
        if tensor is not view:
            _unscale(view, tensor, member)
    if any(tensor is not view for (view, _), tensor in zip(views, scaled, strict=True)):
        # Whoever keeps the certificates is not to keep enlarged copies of the parameters.
        own = dict(zip(names, (view for view, _ in views), strict=True))
        values = [own] if shared else list(own.values())
        projections = [_with(p, value) for p, value in zip(projections, values, strict=True)]
    return projections


def _with(projection: Projection[Any], value: Any) -> Projection[Any]:
    """A certificate for another value; one that still lies on a device is read from there."""
    kept = {field.name: getattr(projection, field.name) for field in fields(Projection)}
    return Projection(**{**kept, "value": value})


def _given(weights: Tensor | None) -> bool:
    return weights is not None


def own_weights(member: Member, view: Tensor) -> Tensor | None:
    """A member's weights for its view: in its shape, or one vector that all vectors share."""
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
