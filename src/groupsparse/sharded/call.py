"""The public verbs for sharded tensors: one call of every process that holds a part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..bundle import rebuilt
from ..errors import InvalidInput, UnsupportedType
from ..layout import Axis, normal_axes
from ..result import Projection, Status
from .answer import Answer, Side, answers
from .jumps import resolve
from .network import Alone, Network
from .part import Part
from .pieces import Piece, is_dtensor, piece_of
from .solve import Group, evaluate, solve, totals

SHARDED, ALONE = "sharded", "torch"  # kernels: with a network, and without one


@dataclass(frozen=True)
class Member:
    """One tensor of a group, and where its vectors lie; see :class:`.part.Part`."""

    tensor: Any
    axes: Axis
    name: str
    weights: Any = None
    price: float = 1.0
    fold: int | None = None


@torch.no_grad()
def project_groups_(
    groups: Sequence[Sequence[Member]],
    targets: Sequence[float],
    starts: Sequence[float | None],
    values: Sequence[Any],
    *,
    tol: float | None = None,
    kernel: str | None = None,
    certify: bool = True,
) -> list[Projection[Any]]:
    """Project groups of tensors in place; all of them or, where one process objects, none.

    Every process that holds a part of the tensors calls this with the same groups. ``values`` are
    what the certificates hold as theirs.
    """
    members = [member for group in groups for member in group]
    meshes = [m.tensor.device_mesh for m in members if is_dtensor(m.tensor)]
    network: Any = Network(meshes) if meshes else Alone(members[0].tensor.device)
    name = SHARDED if meshes else ALONE
    problem: Exception | None = None
    made: list[Group] = []
    try:
        if kernel not in (None, name):
            raise InvalidInput(
                f"kernel is {kernel!r}, which cannot read these tensors; expected {name!r}"
            )
        made = _groups(network, groups, targets, starts)
    except Exception as error:  # the others have to hear of it, whatever it is
        problem = error
    described = [(tuple(m.tensor.shape), str(m.tensor.dtype), str(m.axes)) for m in members]
    options = list(map(len, groups)), list(targets), list(starts), tol, certify
    network.agree(str((described, options)), problem)
    solve(network, made, tol)
    results = _write(network, made, values, name, certify)
    for member in members:
        torch.autograd.graph.increment_version(member.tensor)
    return results


def _groups(
    network: Network,
    groups: Sequence[Sequence[Member]],
    targets: Sequence[float],
    starts: Sequence[float | None],
) -> list[Group]:
    pieces: list[Piece] = []
    made = []
    for group, target, start in zip(groups, targets, starts, strict=True):
        parts = []
        for member in group:
            piece = piece_of(member.tensor, member.name)
            axes = normal_axes(member.axes, len(piece.shape), member.name)
            if 0 in piece.shape:
                raise InvalidInput(
                    f"{member.name} is empty (shape {piece.shape}); expected at least one vector"
                )
            pieces.append(piece)
            options: dict[str, Any] = {"price": member.price, "fold": member.fold}
            parts.append(Part(piece, axes, member.name, member.weights, network, **options))
        made.append(Group(parts, target, start))
    places = [piece.local.data_ptr() for piece in pieces if piece.local.numel()]
    if len(set(places)) < len(places):
        raise InvalidInput("two of the tensors share memory; give tied ones only once")
    return made


def _write(
    network: Network, groups: Sequence[Group], values: Sequence[Any], kernel: str, certify: bool
) -> list[Projection[Any]]:
    moving = [group for group in groups if group.root.mu > 0.0]
    found = answers(network, moving)
    states = dict(zip(map(id, moving), resolve(network, moving, found), strict=True))
    _check_range(network, moving, found)
    proofs = _proofs(network, groups, moving, found) if certify else []
    for group, some in zip(moving, found, strict=True):
        group.passes += 1
        for answer in some:
            answer.part.local.copy_(answer.entries())
            answer.part.at = None
    left = totals(network, groups, [0.0] * len(groups)) if certify else []
    results = []
    for i, group in enumerate(groups):
        primal, dual = proofs[i] if certify else (math.nan, math.nan)
        top = group.level + group.count * group.target
        results.append(
            Projection(
                value=values[i],
                multiplier=group.root.mu * group.unit,
                target=group.target,
                hoyer=(top - left[i][0]) / group.count if certify else math.nan,
                status=states.get(id(group), Status.FEASIBLE),
                iterations=group.root.iterations,
                passes=group.passes,
                kernel=kernel,
                primal=primal * group.unit,
                dual=(dual + group.root.mu * group.level) * group.unit,
            )
        )
    return results


def _proofs(
    network: Network,
    groups: Sequence[Group],
    moving: Sequence[Group],
    found: Sequence[list[Answer]],
) -> list[tuple[float, float]]:
    """Σ xᵀ|c| at the answer and Σ xᵀ(|c| − t w) at the best x, of every group."""
    still = [group for group in groups if group.root.mu == 0.0]
    evaluate(network, still, [0.0] * len(still))
    of_group = dict(zip(map(id, moving), found, strict=True))
    rows = []
    for group in groups:
        some = of_group.get(id(group)) or [
            Answer(Side(part, 0.0, part.at[1])) for part in group.parts if part.at is not None
        ]
        each = []
        for answer in some:
            part = answer.part
            primal = (answer.length * (part.beta / part.rate)).sum()
            pair = torch.stack([primal, answer.side.value().sum()])
            each.append(pair.to(network.device) * float(part.counts))
        rows.append(torch.stack(each).sum(0))
    numbers = network.total(torch.cat(rows))
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _check_range(network: Network, groups: Sequence[Group], found: Sequence[list[Answer]]) -> None:
    """Raise in every process where the answer cannot be written in a tensor's dtype."""
    doubtful = []
    for group, some in zip(groups, found, strict=True):
        for answer in some:
            part = answer.part
            room = math.log2(torch.finfo(part.local.dtype).max * part.price)
            # No entry of an answer is larger than the length of its vector.
            if group.exponents[1] + 0.5 * math.log2(part.length) > room - 1.0:
                doubtful.append(answer)
    if not doubtful:
        return
    tops = [_top(answer).to(network.device) for answer in doubtful]
    for answer, top in zip(doubtful, network.largest(torch.stack(tops)), strict=True):
        dtype = answer.part.local.dtype
        if not top <= torch.finfo(dtype).max:
            raise InvalidInput(
                f"{answer.part.name}: an entry of the answer is {top}, out of the range of "
                f"{dtype} (largest {torch.finfo(dtype).max}); scale the vectors down first"
            )


def _top(answer: Answer) -> Tensor:
    entries = answer.entries().abs()
    return entries.max() if entries.numel() else entries.new_zeros(())


def project(
    given: Any,
    hoyer: float,
    *,
    axis: Axis,
    weights: Any,
    tol: float | None,
    start: float | None,
    kernel: str | None,
    in_place: bool,
    certify: bool,
) -> Any:
    """``project``, ``project_`` and ``solve`` of one tensor, or of a container of tensors."""
    single = isinstance(given, Tensor)
    keys: Sequence[Any] = (
        [None] if single else list(given) if isinstance(given, Mapping) else range(len(given))
    )
    tensors = [given if single else given[key] for key in keys]
    if not in_place:
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if wanted and any(is_dtensor(t) for t in tensors):
            raise UnsupportedType(
                "the projection of sharded tensors has no derivative; call it under "
                "torch.no_grad(), or detach them first"
            )
        tensors = [_copy(tensor.detach()) for tensor in tensors]
    members = [
        Member(
            tensor,
            axis if single else None,
            "vectors" if single else f"vectors[{key!r}]",
            weights if single or weights is None else weights[key],
        )
        for key, tensor in zip(keys, tensors, strict=True)
    ]
    value = given if in_place else tensors[0] if single else rebuilt(given, keys, tensors)
    options: dict[str, Any] = {"tol": tol, "kernel": kernel, "certify": certify}
    [found] = project_groups_([members], [hoyer], [start], [value], **options)
    return found if certify else value


def _copy(x: Tensor) -> Tensor:
    """A copy to be projected; integers become float64."""
    whole = not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool)
    return x.to(torch.float64) if whole else x.clone()


def project_each_(
    members: Sequence[Member],
    targets: Sequence[float],
    starts: Sequence[float | None],
    given: Any,
    *,
    shared: bool,
    tol: float | None,
    kernel: str | None,
) -> list[Projection[Any]]:
    """``project_each_`` of sharded tensors, or of others where they lie."""
    groups = [list(members)] if shared else [[member] for member in members]
    values = [given] if shared else [member.tensor for member in members]
    return project_groups_(groups, targets, starts, values, tol=tol, kernel=kernel)
