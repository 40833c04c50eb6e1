"""Where the weights of CUDA tensors lie, as the weighted kernels walk them beside the entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedType
from ..tensors import spread_weights
from .tables import DTYPES, Shape


@dataclass
class Laid:
    """The weights of one tensor: what the kernel reads, and its row in the table of weights."""

    tensor: Tensor
    source: Tensor | None  # what has to be copied there before each call
    steps: tuple[int, int, int]  # from vector to vector, entry to entry, lane to lane

    @property
    def row(self) -> list[int]:
        """The columns of ``kernels/triton_weighted.py``."""
        item = self.tensor.element_size()
        return [self.tensor.data_ptr(), *self.steps, item, DTYPES[self.tensor.dtype]]


def lay(
    weights: Any, x: Tensor, walked: Tensor, shape: Shape, axes: tuple[int, ...], name: str
) -> Laid:
    """Lay weights out as ``walked`` lies, which has the entries of ``x``; only where they do not.

    None stands for ones. One vector for all vectors stays one vector.
    """
    if weights is None:
        return Laid(torch.ones(shape.length, device=walked.device), None, (0, 1, 0))
    given = torch.as_tensor(weights).detach()
    if given.dtype.is_complex or given.dtype == torch.bool:
        raise UnsupportedType(f"weights of {name} have dtype {given.dtype}; expected real numbers")
    if given.shape == x.shape:
        steps = (shape.stride, shape.step, int(shape.inner > 1))
        if given.stride() != walked.stride():
            stage = torch.empty_strided(
                walked.shape, walked.stride(), dtype=_kind(given), device=walked.device
            )
            return Laid(stage, given, steps)
    else:
        steps = (0, 1, 0)
        given = _one_vector(spread_weights(given, x, axes), walked, axes)
    if given.dtype in DTYPES and given.device == walked.device:
        return Laid(given, None, steps)
    return Laid(torch.empty_like(given, dtype=_kind(given), device=walked.device), given, steps)


def _one_vector(spread: Tensor, walked: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The weights that all vectors share, in the order in which a vector's entries lie."""
    others = [a for a in range(spread.ndim) if a not in axes]
    for a in others:
        spread = spread.narrow(a, 0, 1)
    order = sorted(axes, key=lambda a: -walked.stride()[a])
    return spread.permute(*others, *order).reshape(-1).contiguous()


def _kind(weights: Tensor) -> torch.dtype:
    return weights.dtype if weights.dtype in DTYPES else torch.float64
