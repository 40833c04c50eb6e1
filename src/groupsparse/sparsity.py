"""The two measures of this library: Hoyer's, and the plain fraction of zeros."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bundle import weights_in_order
from .errors import InvalidInput
from .layout import Axis, normal_axes, real_array, weights_of


def hoyer(x: Any, *, axis: Axis = -1, weights: Any = None) -> Any:
    """Hoyer measure of each vector: (‖w‖₂ − Σ wⱼ|xⱼ| / ‖x‖₂) / (‖w‖₂ − min w).

    It is 0 where all entries are equally large and 1 where a single one is not zero; without
    weights, w = 1. A zero vector counts as 1. A vector of length 1 has no Hoyer measure: NaN, as
    for one with an entry that is not finite.

    Parameters
    ----------
    x : array or torch.Tensor
        The vectors lie along ``axis``.
    axis : int, tuple of ints or None
        As in :func:`numpy.linalg.norm`; None takes the whole array as one vector.
    weights : array, optional
        One entry per entry of ``x``, or one vector that is used for all.

    Returns
    -------
    array of float64, a float where there is one vector, a torch.Tensor for a torch.Tensor
        One measure per vector.

    Examples
    --------
    >>> import groupsparse as gs
    >>> round(gs.hoyer([3.0, 4.0, 0.0, 0.0]), 12)
    0.6
    >>> gs.hoyer([[1.0, 1.0], [0.0, 2.0]]).round(12)
    array([0., 1.])
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from .tensors import hoyer_of_tensor

        return hoyer_of_tensor(x, axis, weights)
    array = real_array(x, "x")
    axes = normal_axes(axis, array.ndim, "x")
    if array.size == 0:
        raise InvalidInput(f"x is empty (shape {array.shape}); expected at least one vector")
    magnitude = np.abs(array, dtype=np.float64)
    # Dividing by the largest entry keeps the squares in range; the measure does not change.
    with np.errstate(invalid="ignore"):  # an infinity becomes a NaN, as its measure is
        magnitude /= np.where((top := magnitude.max(axis=axes, keepdims=True)) > 0.0, top, 1.0)
    norm = np.sqrt((magnitude * magnitude).sum(axis=axes))
    if weights is None:
        length = math.prod(array.shape[a] for a in axes)
        total, whole, least = magnitude.sum(axis=axes), math.sqrt(length), 1.0
    else:
        weight = weights_of(weights, array, axes, "x")
        length = math.prod(array.shape[a] for a in axes)
        weight = weight / weight.max(axis=axes, keepdims=True)
        total = (magnitude * weight).sum(axis=axes)
        whole = np.sqrt((weight * weight).sum(axis=axes))
        least = weight.min(axis=axes)
    if length == 1:
        measure = np.full(norm.shape, np.nan)
    else:
        measure = (whole - total / np.where(norm > 0.0, norm, 1.0)) / (whole - least)
        measure = np.where(norm == 0.0, 1.0, measure)
    return float(measure) if measure.ndim == 0 else measure


def average_hoyer(vectors: Any, *, axis: Axis = -1, weights: Any = None) -> float:
    """Average Hoyer measure of a set of vectors, those of length 1 left out.

    Parameters
    ----------
    vectors : array, torch.Tensor, or list, tuple or dict of such
        An array holds its vectors along ``axis``; each member of a container is one vector.
    axis : int, tuple of ints or None
        Where the vectors of an array lie; not used for containers.
    weights : like ``vectors``, optional
        See :func:`hoyer`.

    Returns
    -------
    float
        (1/r) Σ sp(xᵢ).

    Examples
    --------
    >>> import groupsparse as gs
    >>> round(gs.average_hoyer([[1.0, 1.0], [0.0, 2.0, 0.0], [7.0]]), 12)
    0.5
    """
    if isinstance(vectors, Mapping | list | tuple):
        keys = list(vectors) if isinstance(vectors, Mapping) else range(len(vectors))
        every = [None] * len(keys) if weights is None else weights_in_order(weights, vectors)
        parts = [
            hoyer(vectors[key], axis=None, weights=weight)
            for key, weight in zip(keys, every, strict=True)
            if math.prod(np.shape(vectors[key])) != 1
        ]
    else:
        shape = np.shape(vectors)
        axes = normal_axes(axis, len(shape), "vectors")
        counted = math.prod(shape[a] for a in axes) != 1
        parts = [hoyer(vectors, axis=axis, weights=weights)] if counted else []
    if not parts:
        raise InvalidInput("vectors holds nothing to measure; expected a vector of length >= 2")
    return float(np.concatenate([_numbers(part) for part in parts]).mean())


def _numbers(part: Any) -> NDArray[np.float64]:
    """Measures on the host, as a flat array."""
    host = part.detach().cpu() if hasattr(part, "detach") else part
    return np.ravel(np.asarray(host))


def zero_fraction(x: Any) -> float:
    """Fraction of the entries that are exactly zero: what pruning libraries call sparsity.

    Parameters
    ----------
    x : array, torch.Tensor, or list, tuple or dict of such
        Everything in it counts together.

    Returns
    -------
    float
        Zeros over entries.

    Examples
    --------
    >>> import groupsparse as gs
    >>> gs.zero_fraction([[0.0, 2.0], [0.0, 0.0, 1.0, 3.0]])
    0.5
    """
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, list | tuple) else [x]
    zeros = entries = 0
    for part in parts:
        if hasattr(part, "numel"):
            zeros += part.numel() - int((part != 0).sum())
            entries += part.numel()
        else:
            array = np.asarray(part)
            zeros += array.size - int(np.count_nonzero(array))
            entries += array.size
    if entries == 0:
        raise InvalidInput("x is empty; expected at least one entry")
    return zeros / entries
