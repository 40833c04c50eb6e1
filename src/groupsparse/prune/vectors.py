"""What one vector is inside a parameter: a filter, a kernel, or the whole layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .sharding import is_sharded, local
from .targets import TRANSPOSED, Target

KINDS = ("filter", "kernel", "layer")


def vector_view(
    target: Target, kind: str, values: Tensor | None = None
) -> tuple[Tensor, tuple[int, ...]]:
    """The parameter's memory as a view, and the axes of the view along which its vectors lie.

    Of a sharded parameter it is this process's part, unless the whole is given as ``values``.

    ``filter`` is all that makes one output channel: ``c·k·k`` entries of a convolution, a row of a
    Linear. ``kernel`` is ``k·k`` entries; where that would be one entry, which has no Hoyer measure
    (Linear, 1 × 1 convolution), it is the filter. ``layer`` is the whole parameter.

    Examples
    --------
    >>> from torch import nn
    >>> from groupsparse.prune.targets import select
    >>> (conv,) = select(nn.Conv2d(3, 8, 5), "Conv2d")
    >>> vector_view(conv, "filter")[1], vector_view(conv, "kernel")[1]
    ((1, 2, 3), (2, 3))
    """
    view = local(target.parameter) if values is None else values
    everything = tuple(range(view.ndim))
    if kind == "layer" or view.ndim == 1:
        return view, everything
    classes = {c.__name__ for c in type(target.owner).__mro__}
    if kind == "kernel" and view.ndim > 2 and math.prod(view.shape[2:]) > 1:
        return view, everything[2:]
    if classes.isdisjoint(TRANSPOSED):
        # Hugging Face's Conv1D is a Linear that stores its matrix as inputs × outputs.
        turned = "Conv1D" in classes and view.ndim == 2
        return view, (0,) if turned else everything[1:]
    # A transposed convolution stores inputs × outputs per group, with the groups along axis 0.
    groups = int(getattr(target.owner, "groups", 1))
    if groups == 1:
        return view, (0, *everything[2:])
    grouped = view.view(groups, view.shape[0] // groups, *view.shape[1:])
    return grouped, (1, *range(3, grouped.ndim))


def vector_length(view: Tensor, axes: tuple[int, ...]) -> int:
    """How many entries one vector has."""
    return math.prod(view.shape[axis] for axis in axes)


def splits_vectors(target: Target, axes: tuple[int, ...]) -> bool:
    """Whether parts of one vector lie in different processes."""
    if not is_sharded(target.parameter):
        return False
    placements = target.parameter.placements  # type: ignore[attr-defined]
    return any(getattr(placement, "dim", None) in axes for placement in placements)


def as_rows(view: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The vectors as the rows of a matrix: a view where the strides allow it, else a copy."""
    others = [axis for axis in range(view.ndim) if axis not in axes]
    count = math.prod(view.shape[axis] for axis in others)
    return view.permute(*others, *axes).reshape(count, vector_length(view, axes))


def like_parameter(rows: Tensor, view: Tensor, axes: tuple[int, ...], shape: torch.Size) -> Tensor:
    """The inverse of `as_rows` for something computed from it, in the parameter's own shape."""
    others = [axis for axis in range(view.ndim) if axis not in axes]
    order = [*others, *axes]
    moved = rows.reshape([view.shape[axis] for axis in order])
    inverse = [order.index(axis) for axis in range(view.ndim)]
    return moved.permute(inverse).reshape(shape)
