"""The public verbs on CUDA tensors."""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..bundle import rebuilt, weights_in_order
from ..errors import InvalidInput, UnsupportedType
from ..layout import Axis, normal_axes
from ..result import Projection
from .memory import repeats_memory
from .plan import Projector

# Plans of earlier calls. They hold workspace, about a hundredth of their tensors, and no tensor.
REMEMBERED = 16
_plans: OrderedDict[Hashable, Projector] = OrderedDict()
_lock = threading.Lock()


@functools.cache
def usable() -> bool:
    """Whether there is a Triton to run CUDA tensors with."""
    return importlib.util.find_spec("triton") is not None


def check_place(tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Raise where the kernel was asked for and cannot run."""
    from ..kernels.triton_launch import INTERPRETED

    for x, name in zip(tensors, names, strict=True):
        if not isinstance(x, Tensor) or not (x.is_cuda or INTERPRETED):
            where = x.device if isinstance(x, Tensor) else "no tensor"
            raise InvalidInput(f"kernel 'triton' needs CUDA tensors; {name} is {where}")


def solve(
    given: Any,
    hoyer: float,
    *,
    axis: Axis,
    weights: Any,
    tol: float | None,
    start: Any,
    in_place: bool,
) -> Projection[Any]:
    """``solve``, ``project`` and ``project_`` of one tensor, or of a container of tensors.

    Waits for the device once, since bad input is an error here.
    """
    single = isinstance(given, Tensor)
    keys: Sequence[Any] = (
        [None] if single else list(given) if isinstance(given, Mapping) else range(len(given))
    )
    names = ["vectors" if single else f"vectors[{key!r}]" for key in keys]
    tensors = [given if single else given[key] for key in keys]
    check_place(tensors, names)
    for x, name in zip(tensors, names, strict=True):
        if not single and x.ndim == 0:
            raise InvalidInput(
                f"{name} is a single number; each member of a container is one vector (one vector "
                "alone: pass it as an array)"
            )
    axes: list[Any] = [normal_axes(axis if single else None, x.ndim, "vectors") for x in tensors]
    weigh = None
    if weights is not None:
        weigh = [weights] if single else weights_in_order(weights, given)
    outputs = None
    if not in_place:
        tensors = [_readable(x, name) for x, name in zip(tensors, names, strict=True)]
        outputs = [torch.empty_like(x) for x in tensors]
    with _lock:
        plan = _plan(tensors, outputs, axes, weigh, shared=True, tol=tol, names=names)
        try:
            plan.refuse_plain()
            plan.launch(hoyer, start)
            plan.raise_if_refused()
            [found] = plan.certificates(plan.report.clone())
        finally:
            plan.release()
    value = given if outputs is None else outputs[0] if single else rebuilt(given, keys, outputs)
    object.__setattr__(found, "shown", value)
    return found


def _readable(x: Tensor, name: str) -> Tensor:
    """A tensor that the kernel can read, and of whose kind the answer is."""
    x = x.detach()
    if x.dtype.is_complex or x.dtype == torch.bool:
        raise UnsupportedType(f"{name} has dtype {x.dtype}; expected real numbers")
    if not x.dtype.is_floating_point:
        return x.to(torch.float64)
    return x.contiguous() if repeats_memory(x) else x


def project_each_(
    tensors: Mapping[Any, Tensor] | Sequence[Tensor],
    targets: Sequence[float],
    *,
    axes: Sequence[Any],
    weights: Any,
    shared: bool,
    tol: float | None,
    start: Any,
) -> list[Projection[Any]]:
    """``project_each_`` of CUDA tensors: nothing waits, and no error can be raised for values."""
    keys = list(tensors) if isinstance(tensors, Mapping) else list(range(len(tensors)))
    names = [f"tensors[{key!r}]" for key in keys]
    members = [tensors[key] for key in keys]
    check_place(members, names)
    weigh = None if weights is None else [weights[key] for key in keys]
    with _lock:
        plan = _plan(members, None, list(axes), weigh, shared=shared, tol=tol, names=names)
        try:
            return run(plan, targets, start, tensors if shared else None)
        finally:
            plan.release()


def run(plan: Projector, targets: Sequence[float], start: Any, shown: Any) -> list[Projection[Any]]:
    """Queue a plan's work; the certificates keep their numbers when the plan is called again.

    ``shown`` is the value of the one certificate where all tensors are one group.
    """
    plan.launch(targets, start)
    found = plan.certificates(plan.report.clone())
    if shown is not None:
        object.__setattr__(found[0], "shown", shown)
    return found


def _plan(
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor] | None,
    axes: list[Any],
    weights: list[Any] | None,
    *,
    shared: bool,
    tol: float | None,
    names: Sequence[str],
) -> Projector:
    """A plan for these tensors: an earlier call's, if one was as these are."""
    stream = torch.cuda.current_stream(tensors[0].device).cuda_stream if tensors[0].is_cuda else 0
    lie = tuple(map(lies, tensors))
    goals = None if outputs is None else tuple(map(lies, outputs))
    along = tuple(tuple(a) if isinstance(a, list) else a for a in axes)
    weigh = None
    if weights is not None:
        weights = [None if w is None else torch.as_tensor(w) for w in weights]
        weigh = tuple(None if w is None else lies(w) for w in weights)
    key = (stream, shared, tol, lie, goals, along, weigh, tuple(names))
    plan = _plans.get(key)
    if plan is None:
        plan = Projector(
            tensors, axis=axes, shared=shared, tol=tol, outputs=outputs, names=names,
            weights=weights,
        )  # fmt: skip
        if not plan.staged:  # copies of tensors are not kept
            _plans[key] = plan
        if len(_plans) > REMEMBERED:
            _plans.popitem(last=False)
    else:
        _plans.move_to_end(key)
        plan.bind(tensors, outputs, weights)
    return plan


def lies(x: Tensor) -> tuple[Any, ...]:
    """All that a plan depends on."""
    return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16 == 0
