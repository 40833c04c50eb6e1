"""Projection as a PyTorch operator: differentiable, compilable, and usable in ``torch.func``.

The derivative follows from the implicit function theorem. With d = [|c| − t w]₊, q = ‖d‖, x = d/q,
a cotangent v, u = sign(c)∘v, and ⊥ for the part orthogonal to x, one vector contributes

    h = (uᵀx)(t/q) w⊥ + (α/q) u⊥,   α = |c|ᵀx,      at fixed μ:  (uᵀx) x + h,

and the common multiplier, moved by every vector, adds −(Γ/g′) β w⊥/q with Γ = −Σ β wᵀh and
g′ = −Σ β² ‖w⊥‖²/q. Entries that are cut have derivative 0, as has the answer's dependence on which
of several equally large entries is kept. Weights and target are constants. The forward derivative
is the transpose of this map.

Compiled code sees an operator; everything else a ``Function``, since PyTorch's operators know no
forward derivative (they drop it without a word) and no ``torch.func.grad``.
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
    tensors = [torch.as_tensor(w) for w in every]
    options = (_NONE if tol is None else tol, _NONE if start is None else start, kernel or "")
    if torch.compiler.is_compiling():
        values, _ = _project(vectors, hoyer, axes, tensors, *options)
    else:
        found = _Projected.apply(  # type: ignore[no-untyped-call]
            len(vectors), hoyer, axes, options, *vectors, *tensors
        )
        values = found[:-1]
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


@torch.library.custom_op("groupsparse::project_derivative", mutates_args=())
def _derive(
    directions: list[Tensor],
    vectors: list[Tensor],
    multiplier: Tensor,
    axes: list[int],
    weights: list[Tensor],
    forward: bool,
) -> list[Tensor]:
    """The derivative of all answers along the directions, or its transpose."""
    mu = float(multiplier)
    if mu == 0.0:
        return [v.clone() for v in directions]
    parts = [_Part(x, axes, weights[i] if weights else None, mu) for i, x in enumerate(vectors)]
    pairs = zip(parts, directions, strict=True)
    moved = [part.push(v) if forward else part.pull(v) for part, v in pairs]
    slope = torch.stack([part.slope for part in parts]).sum()
    turn = torch.stack([turn for _, turn in moved]).sum()
    ratio = torch.where(slope < 0.0, turn / slope, 0.0)
    return [
        part.finish(fixed + ratio * (part.answer_turn if forward else part.turn))
        for part, (fixed, _) in zip(parts, moved, strict=True)
    ]


@_derive.register_fake
def _(
    directions: list[Tensor],
    vectors: list[Tensor],
    multiplier: Tensor,
    axes: list[int],
    weights: list[Tensor],
    forward: bool,
) -> list[Tensor]:
    return [torch.empty_like(x) for x in vectors]


class _Part:
    """What one tensor contributes to the derivative."""

    def __init__(self, x: Tensor, axes: list[int], weights: Tensor | None, mu: float) -> None:
        self.like = x
        wide = working_dtype(x.device)
        self.along = tuple(axes) or tuple(range(x.ndim))
        length = math.prod(x.shape[a] for a in self.along)
        self.counted = length > 1
        c, self.sign = x.abs().to(wide), torch.where(x < 0, -1.0, 1.0).to(wide)
        self.slope = torch.zeros((), dtype=wide, device=x.device)
        if not self.counted:
            self.turn = self.answer_turn = torch.zeros_like(c)
            return
        if weights is None:
            w = torch.ones_like(c)
            beta = torch.as_tensor(1.0 / (math.sqrt(length) - 1.0)).to(c)
        else:
            w = spread_weights(weights.to(c), x, self.along)
            beta = 1.0 / (self._total(w * w).sqrt() - w.amin(self.along, keepdim=True))
        t = mu * beta
        d = (c - t * w).clamp(min=0.0)
        q = self._total(d * d).sqrt()
        live = q > 0.0
        # A 1-sparse answer does not move: only its one entry lets a change through.
        corner = (c - t * (w - w.amin(self.along, keepdim=True))).clone()
        one_hot = (corner == corner.amax(self.along, keepdim=True)).to(c)
        self.unit = torch.where(live, d / torch.where(live, q, 1.0), one_hot)
        inverse = torch.where(live, 1.0 / torch.where(live, q, 1.0), 0.0)
        self.active = (self.unit > 0.0).to(c)
        self.across_w = self._across(w)
        self.tilt, self.swing = inverse * t, inverse * self._total(c * self.unit)
        square = self._total(self.across_w * self.across_w)
        self.slope = -(beta * beta * inverse * square).sum()
        self.turn = beta * inverse * self.across_w
        self.answer_turn = beta * (self.tilt * square * self.unit + self.swing * self.across_w)

    def _total(self, y: Tensor) -> Tensor:
        return y.sum(self.along, keepdim=True)

    def _across(self, y: Tensor) -> Tensor:
        """What of it is orthogonal to x, among the active entries."""
        return y * self.active - self._total(y * self.unit) * self.unit

    def pull(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """From the answer to the input, at fixed μ; and how far the answer's change moves μ."""
        u = v.to(self.sign) * self.sign
        if not self.counted:
            return u, self.slope
        inside = self._total(u * self.unit)
        fixed = inside * (self.unit + self.tilt * self.across_w) + self.swing * self._across(u)
        return fixed, (u * self.answer_turn).sum()

    def push(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """From the input to the answer."""
        u = v.to(self.sign) * self.sign
        if not self.counted:
            return u, self.slope
        inside = self._total(u * (self.unit + self.tilt * self.across_w))
        return inside * self.unit + self.swing * self._across(u), (u * self.turn).sum()

    def finish(self, moved: Tensor) -> Tensor:
        return (self.sign * moved).to(self.like.dtype)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    vectors, _, axes, weights, *_ = inputs
    ctx.axes, ctx.count = axes, len(vectors)
    ctx.save_for_backward(output[1], *vectors, *weights)


def _backward(ctx: Any, cotangents: list[Tensor | None], _: Tensor) -> tuple[Any, ...]:
    multiplier, *rest = ctx.saved_tensors
    vectors, weights = rest[: ctx.count], rest[ctx.count :]
    filled = _filled(cotangents, vectors)
    gradients = _derive(filled, list(vectors), multiplier, ctx.axes, list(weights), False)
    # An empty list counts as a list of tensors, a list of numbers as a single argument.
    axes: list[Tensor] | None = None if ctx.axes else []
    return gradients, None, axes, [None] * len(weights), None, None, None


_project.register_autograd(_backward, setup_context=_save)


class _Projected(torch.autograd.Function):
    """The operator with both derivatives; the last of its outputs is the multiplier."""

    @staticmethod
    def forward(count: int, hoyer: float, axes: Any, options: Any, *tensors: Tensor) -> Any:
        given, weights = list(tensors[:count]), list(tensors[count:])
        values, multiplier = _project(given, hoyer, axes, weights, *options)
        return (*values, multiplier)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.count, _, ctx.axes, _, *tensors = inputs
        ctx.mark_non_differentiable(output[-1])
        ctx.save_for_backward(output[-1], *tensors)
        ctx.save_for_forward(output[-1], *tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        gradients = _Projected._derived(ctx, cotangents[:-1], False)
        return (
            None,
            None,
            None,
            None,
            *gradients,
            *[None] * (len(ctx.saved_tensors) - 1 - ctx.count),
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return (*_Projected._derived(ctx, tangents[4 : 4 + ctx.count], True), None)

    @staticmethod
    def _derived(ctx: Any, directions: Any, forward: bool) -> Any:
        saved = ctx.saved_tensors
        filled = _filled(directions, saved[1 : 1 + ctx.count])
        return _Derived.apply(  # type: ignore[no-untyped-call]
            ctx.count, ctx.axes, forward, *filled, *saved
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _one_by_one(_Projected.apply, info, in_dims, arguments)


class _Derived(torch.autograd.Function):
    """The derivative, which has none itself and says so."""

    @staticmethod
    def forward(count: int, axes: Any, forward: bool, *tensors: Tensor) -> Any:
        directions, multiplier = list(tensors[:count]), tensors[count]
        vectors, weights = list(tensors[count + 1 : 2 * count + 1]), list(tensors[2 * count + 1 :])
        return tuple(_derive(directions, vectors, multiplier, axes, weights, forward))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("project has no second derivatives")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("project has no second derivatives")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _one_by_one(_Derived.apply, info, in_dims, arguments)


def _filled(directions: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """The directions, zero where there is none."""
    pairs = zip(directions, like, strict=True)
    return [torch.zeros_like(x) if v is None else v for v, x in pairs]


def _one_by_one(call: Any, info: Any, in_dims: Any, arguments: Any) -> tuple[Any, Any]:
    """``vmap``: every member of the batch is a problem of its own."""
    answers = [call(*_member(arguments, in_dims, i)) for i in range(info.batch_size)]
    return _stacked(answers)


def _member(x: Any, at: Any, i: int) -> Any:
    """Number ``i`` of a batch that lies along the axis ``at`` of each tensor."""
    if at is None:
        return x
    if isinstance(x, Tensor):
        return x.select(at, i)
    return [_member(one, where, i) for one, where in zip(x, at, strict=True)]


def _stacked(answers: Sequence[Any]) -> tuple[Any, Any]:
    """The answers as batches, and the axis of each batch."""
    if isinstance(answers[0], Tensor):
        return torch.stack(list(answers)), 0
    kind = type(answers[0])
    values, places = zip(*(_stacked(each) for each in zip(*answers, strict=True)), strict=True)
    return kind(values), kind(places)


_project.register_vmap(lambda *batch: _one_by_one(_project, batch[0], batch[1], batch[2:]))
_derive.register_vmap(lambda *batch: _one_by_one(_derive, batch[0], batch[1], batch[2:]))
