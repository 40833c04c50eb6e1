"""The measures of a stored tensor, without the copies in float64 that ``gs.hoyer`` makes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..layout import Axis, arrange, filter_axes, normal_axes
from ..sparsity import average_hoyer
from .stored import Stored

PIECE = 1 << 22  # entries looked at together


class Measures(NamedTuple):
    """Zeros, average Hoyer measure and number of vectors; NaN where nothing can be measured."""

    zeros: int
    hoyer: float
    vectors: int


def axes_of(ndim: int, axis: Axis | str = "filters") -> tuple[int, ...]:
    """Where the vectors lie: along every axis but the first, unless ``axis`` says otherwise."""
    if axis == "filters":
        return filter_axes(ndim)
    assert not isinstance(axis, str)
    return normal_axes(axis, ndim, "the tensor")


def measure(values: NDArray[Any], axes: tuple[int, ...]) -> Measures:
    """Zeros and average Hoyer measure of the vectors along these axes."""
    zeros = values.size - _nonzero(values)
    length = int(np.prod([values.shape[axis] for axis in axes]))
    vectors = values.size // length if length else 0
    if length < 2 or vectors == 0:
        return Measures(zeros, float("nan"), 0)
    block = arrange(values, axes, None).block
    assert block is not None
    try:
        kernel = kernels.create(None, [block])
        total = kernel.begin(0.0, None)[0].total
    except kernels.NotFinite:
        return Measures(zeros, float("nan"), vectors)
    except kernels.OutOfRange:
        return Measures(zeros, average_hoyer(values, axis=axes), vectors)
    return Measures(zeros, (block.top - total) / vectors, vectors)


def measured(values: NDArray[Any], tensor: Stored) -> Measures:
    """What ``inspect`` shows of a tensor: rows and filters are the vectors."""
    if not tensor.floating or tensor.size == 0 or not tensor.shape:
        return Measures(values.size - _nonzero(values), float("nan"), 0)
    return measure(values, axes_of(len(tensor.shape)))


def _nonzero(values: NDArray[Any]) -> int:
    if values.flags.c_contiguous:  # without a copy of booleans as large as the tensor
        flat = values.reshape(-1)
        pieces = range(0, flat.size, PIECE)
        return sum(int(np.count_nonzero(flat[i : i + PIECE])) for i in pieces)
    return int(np.count_nonzero(values))
