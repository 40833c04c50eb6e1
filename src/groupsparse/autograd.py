"""Projection as a PyTorch operator: differentiable, compilable, and usable under ``vmap``.

The derivative follows from the implicit function theorem. With d = [|c| − t w]₊, q = ‖d‖, x = d/q,
a cotangent v, u = sign(c)∘v, and ⊥ for the part orthogonal to x, one vector contributes

    h = (uᵀx)(t/q) w⊥ + (α/q) u⊥,   α = |c|ᵀx,      at fixed μ:  (uᵀx) x + h,

and the common multiplier, moved by every vector, adds −(Γ/g′) β w⊥/q with Γ = −Σ β wᵀh and
g′ = −Σ β² ‖w⊥‖²/q. Entries that are cut have derivative 0, as has the answer's dependence on which
of several equally large entries is kept. Weights and target are constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .bundle import rebuilt, weights_in_order
from .errors import UnsupportedType
from .kernels.torch_eager import working_dtype
from .layout import normal_axes
from .tensors import spread_weights

_NONE = -1.0  # schemas have no optional floats among required ones; no argument is negative


def project(
    given: Any,
    hoyer: float,
    axis: Any,
    weights: Any,
    tol: float | None,
    start: float | None,
    kernel: str | None,
) -> Any:
    """Project one tensor, or a container of tensors that are one vector each."""
    single = isinstance(given, Tensor)
    keys: Sequence[Any] = (
        [0] if single else list(given) if isinstance(given, Mapping) else range(len(given))
    )
    vectors = [given] if single else [given[key] for key in keys]
    axes = list(normal_axes(axis, given.ndim, "vectors")) if single else []
    every: list[Any] = []
    if weights is not None:
        every = [weights] if single else weights_in_order(weights, given)
        if any(weight is None for weight in every):
            raise UnsupportedType("weights holds a None; expected the weights of each member")
    values, _ = _project(
        vectors,
        float(hoyer),
        axes,
        [torch.as_tensor(w) for w in every],
        _NONE if tol is None else tol,
        _NONE if start is None else start,
        kernel or "",
    )
    return values[0] if single else rebuilt(given, keys, values)


@torch.library.custom_op("groupsparse::project", mutates_args=())
def _project(
    vectors: list[Tensor],
    hoyer: float,
    axes: list[int],
    weights: list[Tensor],
    tol: float,
    start: float,
    kernel: str,
) -> tuple[list[Tensor], Tensor]:
    from .projection import solve_quietly

    given: Any = vectors[0] if axes else list(vectors)
    value, mu = solve_quietly(
        given,
        hoyer,
        axis=tuple(axes) or None,
        weights=None if not weights else weights[0] if axes else list(weights),
        tol=None if tol < 0.0 else tol,
        start=None if start < 0.0 else start,
        kernel=kernel or None,
    )
    multiplier = torch.tensor(mu, dtype=torch.float64)
    return ([value] if axes else list(value)), multiplier


@_project.register_fake
def _(
    vectors: list[Tensor],
    hoyer: float,
    axes: list[int],
    weights: list[Tensor],
    tol: float,
    start: float,
    kernel: str,
) -> tuple[list[Tensor], Tensor]:
    kinds = [x.dtype if x.dtype.is_floating_point else torch.float64 for x in vectors]
    values = [torch.empty_like(x, dtype=kind) for x, kind in zip(vectors, kinds, strict=True)]
    return values, torch.empty((), dtype=torch.float64)


@torch.library.custom_op("groupsparse::project_backward", mutates_args=())
def _pull_back(
    cotangents: list[Tensor],
    vectors: list[Tensor],
    multiplier: Tensor,
    axes: list[int],
    weights: list[Tensor],
) -> list[Tensor]:
    mu = float(multiplier)
    if mu == 0.0:
        return [v.clone() for v in cotangents]
    parts = [
        _Part(x, v, axes, weights[i] if weights else None, mu)
        for i, (x, v) in enumerate(zip(vectors, cotangents, strict=True))
    ]
    slope = torch.stack([part.slope for part in parts]).sum()
    pull = torch.stack([part.pull for part in parts]).sum()
    ratio = torch.where(slope < 0.0, pull / slope, 0.0)
    return [part.gradient(ratio) for part in parts]


@_pull_back.register_fake
def _(
    cotangents: list[Tensor],
    vectors: list[Tensor],
    multiplier: Tensor,
    axes: list[int],
    weights: list[Tensor],
) -> list[Tensor]:
    return [torch.empty_like(x) for x in vectors]


class _Part:
    """What one tensor contributes to the derivative."""

    def __init__(
        self, x: Tensor, v: Tensor, axes: list[int], weights: Tensor | None, mu: float
    ) -> None:
        self.like = x
        wide = working_dtype(x.device)
        along = tuple(axes) or tuple(range(x.ndim))
        length = math.prod(x.shape[a] for a in along)
        self.v = v
        self.counted = length > 1
        self.slope = self.pull = torch.zeros((), dtype=wide, device=x.device)
        if not self.counted:
            return
        c, self.sign = x.abs().to(wide), torch.where(x < 0, -1.0, 1.0).to(wide)
        u = v.to(wide) * self.sign

        def total(y: Tensor) -> Tensor:
            return y.sum(along, keepdim=True)

        if weights is None:
            w = torch.ones_like(c)
            beta = torch.as_tensor(1.0 / (math.sqrt(length) - 1.0)).to(c)
        else:
            w = spread_weights(weights.to(c), x, along)
            beta = 1.0 / (total(w * w).sqrt() - w.amin(along, keepdim=True))
        t = mu * beta
        d = (c - t * w).clamp(min=0.0)
        q = total(d * d).sqrt()
        live = q > 0.0
        # A 1-sparse answer does not move: only its one entry lets a change through.
        corner = (c - t * (w - w.amin(along, keepdim=True))).clone()
        one_hot = (corner == corner.amax(along, keepdim=True)).to(c)
        unit = torch.where(live, d / torch.where(live, q, 1.0), one_hot)
        inverse = torch.where(live, 1.0 / torch.where(live, q, 1.0), 0.0)
        active = (unit > 0.0).to(c)
        across_w = w * active - total(w * unit) * unit
        across_u = u * active - total(u * unit) * unit
        inside = total(u * unit)
        h = inverse * (inside * t * across_w + total(c * unit) * across_u)
        self.fixed = inside * unit + h
        self.turn = beta * inverse * across_w
        self.slope = -(beta * beta * inverse * total(across_w * across_w)).sum()
        self.pull = -(beta * total(w * h)).sum()

    def gradient(self, ratio: Tensor) -> Tensor:
        if not self.counted:
            return self.v.clone()
        return (self.sign * (self.fixed - ratio * self.turn)).to(self.like.dtype)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    vectors, _, axes, weights, *_ = inputs
    ctx.axes, ctx.count = axes, len(vectors)
    ctx.save_for_backward(output[1], *vectors, *weights)


def _backward(ctx: Any, cotangents: list[Tensor | None], _: Tensor) -> tuple[Any, ...]:
    multiplier, *rest = ctx.saved_tensors
    vectors, weights = rest[: ctx.count], rest[ctx.count :]
    filled = [
        torch.zeros_like(x) if v is None else v for x, v in zip(vectors, cotangents, strict=True)
    ]
    gradients = _pull_back(filled, list(vectors), multiplier, ctx.axes, list(weights))
    # An empty list counts as a list of tensors, a list of numbers as a single argument.
    axes: list[Tensor] | None = None if ctx.axes else []
    return gradients, None, axes, [None] * len(weights), None, None, None


_project.register_autograd(_backward, setup_context=_save)


def _over_batch(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """``vmap``: every member of the batch is a problem of its own."""
    vectors, hoyer, axes, weights, *options = arguments
    answers, multipliers = [], []
    for i in range(info.batch_size):
        some = [
            x if at is None else x.select(at, i) for x, at in zip(vectors, in_dims[0], strict=True)
        ]
        these = [
            w if at is None else w.select(at, i) for w, at in zip(weights, in_dims[3], strict=True)
        ]
        values, multiplier = _project(some, hoyer, axes, these, *options)
        answers.append(values)
        multipliers.append(multiplier)
    stacked = [torch.stack(each) for each in zip(*answers, strict=True)]
    return (stacked, torch.stack(multipliers)), ([0] * len(stacked), 0)


_project.register_vmap(_over_batch)
