"""What a model's zeros look like, layer by layer, in both measures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..sparsity import hoyer
from .checkpoints import packed_bytes
from .plan import Member, Plan, groups_of
from .sharding import gather
from .targets import Target, select


@dataclass(frozen=True)
class Row:
    """One parameter, or all of them together.

    ``hoyer`` is the average measure that the plan constrains, weighted where the plan has weights,
    and None where vectors have a single entry and so no measure: no plan can project those.
    ``budget`` is its share of Σ βᵢ‖xᵢ‖₁ with ‖xᵢ‖₂ = 1, the sum that the constraint of its group
    bounds: how much of the group's allowed density the layer uses up.
    """

    name: str
    shape: tuple[int, ...]
    parameters: int
    zeros: int
    hoyer: float | None
    budget: float
    bytes: int
    file_bytes: int

    @property
    def sparsity(self) -> float:
        """The fraction of zeros."""
        return self.zeros / self.parameters


@dataclass(frozen=True)
class Report:
    """One row for each parameter of the plan, and their total; printing it gives a table.

    Attributes
    ----------
    rows : tuple of Row
        name, shape, parameters, zeros, sparsity, hoyer, budget (the layer's share of its group's
        density), bytes in memory, and file_bytes, the size in a file of ``prune.save``.
    total : Row
        All of them together.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> prune.report(torch.nn.Linear(8, 4)).total.parameters
    32
    """

    rows: tuple[Row, ...]
    total: Row

    def __str__(self) -> str:
        header = (
            "",
            "shape",
            "parameters",
            "zeros",
            "sparsity",
            "Hoyer",
            "budget",
            "kB",
            "in file",
        )
        lines = [header, *(_cells(row) for row in (*self.rows, self.total))]
        widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
        text = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join(text)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain numbers, for JSON."""
        rows = [asdict(row) | {"sparsity": row.sparsity} for row in (*self.rows, self.total)]
        return {"rows": rows[:-1], "total": rows[-1]}


@torch.no_grad()
def report(model: nn.Module, plan: Plan | None = None) -> Report:
    """Count zeros, measure Hoyer and compare sizes, for each parameter that the plan targets.

    Parameters
    ----------
    model : torch.nn.Module
        A model or a single layer. Sharded parameters are gathered one at a time.
    plan : Plan, optional
        Which parameters, and what their vectors and groups are; the default plan if not given.

    Returns
    -------
    Report
        Rows and total.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> layer = torch.nn.Linear(4, 2, bias=False)
    >>> with torch.no_grad():
    ...     _ = layer.weight.copy_(torch.eye(2, 4))
    >>> print(prune.report(layer))  # doctest: +NORMALIZE_WHITESPACE
            shape  parameters  zeros  sparsity   Hoyer  budget   kB  in file
    weight  2x4             8      6    75.00%  1.0000  100.0%  0.0      0.0
    total                   8      6    75.00%  1.0000  100.0%  0.0      0.0
    """
    plan = Plan() if plan is None else plan
    groups = groups_of(model, plan)
    found: dict[str, Row] = {}
    vectors = 0
    measured = 0.0
    for group in groups:
        figures = [_measure(member) for member in group.members]
        used = sum(figure.used for figure in figures)
        vectors += sum(figure.vectors for figure in figures)
        measured += sum(figure.hoyer * figure.vectors for figure in figures)
        for member, figure in zip(group.members, figures, strict=True):
            found[member.target.name] = figure.row(used)
    targeted = select(model, plan.targets, plan.ignore)
    rows = [found.get(target.name) or _unmeasured(target) for target in targeted]
    total = Row(
        name="total",
        shape=(),
        parameters=sum(row.parameters for row in rows),
        zeros=sum(row.zeros for row in rows),
        hoyer=measured / vectors,
        budget=1.0,
        bytes=sum(row.bytes for row in rows),
        file_bytes=sum(row.file_bytes for row in rows),
    )
    return Report(tuple(rows), total)


@dataclass(frozen=True)
class _Figures:
    target: Target
    zeros: int
    hoyer: float
    vectors: int
    used: float

    def row(self, group_used: float) -> Row:
        budget = self.used / group_used if group_used > 0.0 else 0.0
        return _row(self.target, self.zeros, self.hoyer, budget)


def _row(target: Target, zeros: int, hoyer: float | None, budget: float) -> Row:
    entries, size = target.parameter.numel(), target.parameter.itemsize
    return Row(
        name=target.name,
        shape=tuple(target.parameter.shape),
        parameters=entries,
        zeros=zeros,
        hoyer=hoyer,
        budget=budget,
        bytes=entries * size,
        file_bytes=min(entries * size, packed_bytes(entries, entries - zeros, size)),
    )


def _unmeasured(target: Target) -> Row:
    """A parameter that is targeted, but cannot be projected: its vectors are single entries."""
    return _row(target, _zeros(gather(target.parameter)), None, 0.0)


def _zeros(whole: Tensor) -> int:
    return whole.numel() - int(whole.count_nonzero())


def _measure(member: Member) -> _Figures:
    whole = gather(member.target.parameter)
    view, axes = member.view(whole)
    weights = member.weights
    if weights is not None and weights.shape == whole.shape:
        weights = weights.reshape(view.shape)
    measures = torch.as_tensor(
        hoyer(view, axis=axes, weights=weights), dtype=torch.float64, device=view.device
    )
    measures = measures.reshape(-1)
    # The measure is β(‖w‖ − wᵀx), so that β wᵀx is what is left. A zero vector uses nothing up.
    used = _most(member.length, weights, axes) - measures
    alive = (view != 0).any(dim=axes).reshape(-1).to(used.device)
    return _Figures(
        target=member.target,
        zeros=_zeros(whole),
        hoyer=float(measures.mean()),
        vectors=measures.numel(),
        used=float(used[alive].sum()),
    )


def _most(length: int, weights: Tensor | None, axes: tuple[int, ...]) -> Tensor | float:
    """β‖w‖ with β = 1/(‖w‖ − min w), of each vector or of all; √n/(√n − 1) without weights."""
    if weights is None:
        return math.sqrt(length) / (math.sqrt(length) - 1.0)
    norm: Tensor
    if weights.numel() == length:
        norm, least = weights.double().norm(), weights.double().min()
    else:
        norm = weights.double().norm(dim=axes).reshape(-1)
        least = weights.double().amin(dim=axes).reshape(-1)
    return norm / (norm - least)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        "x".join(map(str, row.shape)),
        f"{row.parameters:,}",
        f"{row.zeros:,}",
        f"{row.sparsity:.2%}",
        "–" if row.hoyer is None else f"{row.hoyer:.4f}",
        f"{row.budget:.1%}",
        f"{row.bytes / 1000:,.1f}",
        f"{row.file_bytes / 1000:,.1f}",
    )
