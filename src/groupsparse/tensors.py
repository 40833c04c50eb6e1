"""What the core needs to know about PyTorch tensors beyond the kernel: measures of them."""

from __future__ import annotations

import math
from typing import Any

import torch

from .errors import InvalidInput, UnsupportedType
from .kernels.torch_eager import working_dtype
from .layout import Axis, normal_axes


def hoyer_of_tensor(x: torch.Tensor, axis: Axis, weights: Any) -> torch.Tensor:
    """:func:`groupsparse.hoyer` on any device; differentiable."""
    if x.dtype.is_complex or x.dtype == torch.bool:
        raise UnsupportedType(f"x has dtype {x.dtype}; expected real numbers")
    axes = normal_axes(axis, x.ndim, "x")
    if x.numel() == 0:
        raise InvalidInput(f"x is empty (shape {tuple(x.shape)}); expected at least one vector")
    magnitude = x.abs().to(working_dtype(x.device))
    top = magnitude.detach().amax(axes, keepdim=True)
    magnitude = magnitude / torch.where(top > 0.0, top, 1.0)
    length = math.prod([x.shape[a] for a in axes])  # no generator: torch.compile knows none here
    square = (magnitude * magnitude).sum(axes)
    norm = torch.where(square > 0.0, square, 1.0).sqrt()
    if length == 1:
        return torch.full_like(norm, torch.nan)
    if weights is None:
        ratio = magnitude.sum(axes) / norm
        measure = (math.sqrt(length) - ratio) / (math.sqrt(length) - 1.0)
    else:
        weight = spread_weights(torch.as_tensor(weights).to(magnitude), x, axes)
        whole, least = (weight * weight).sum(axes).sqrt(), weight.amin(axes)
        measure = (whole - (weight * magnitude).sum(axes) / norm) / (whole - least)
    return torch.where(square == 0.0, 1.0, measure)


def spread_weights(weight: torch.Tensor, x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """One weight per entry from the weights of one vector."""
    if weight.shape == x.shape:
        return weight
    vector = tuple(x.shape[a] for a in axes)
    if tuple(weight.shape) != vector and tuple(weight.shape) != (math.prod(vector),):
        raise InvalidInput(
            f"weights of x have shape {tuple(weight.shape)}; expected {tuple(x.shape)} or {vector}"
        )
    order = sorted(range(len(axes)), key=axes.__getitem__)
    shape = [x.shape[a] if a in axes else 1 for a in range(x.ndim)]
    return weight.reshape(vector).permute(order).reshape(shape).expand_as(x)
