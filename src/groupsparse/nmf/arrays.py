"""The few operations that NumPy arrays and torch tensors spell differently."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def is_tensor(x: Any) -> bool:
    """Whether x is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def as_vector(x: Any) -> Vector:
    """A short vector as float64 on the host, where all decisions are made."""
    return np.asarray(x.detach().cpu() if is_tensor(x) else x, dtype=np.float64)


def like(values: Any, reference: Any) -> Any:
    """``values`` as what ``reference`` is: same library, dtype and device."""
    if is_tensor(reference):
        return reference.new_tensor(np.asarray(values))
    return np.asarray(values, dtype=reference.dtype)


def empty_like(x: Any) -> Any:
    return x.new_empty(x.shape) if is_tensor(x) else np.empty_like(x)


def copy(x: Any) -> Any:
    return x.clone() if is_tensor(x) else x.copy()


def norms(rows: Any) -> Vector:
    """Euclidean norms of the rows, summed in float64."""
    return np.sqrt(as_vector(_sum(rows * rows, 1)))


def inner(x: Any, y: Any) -> float:
    """Σ xy, summed in float64."""
    return float(_sum(x * y, None))


def row_sums(rows: Any) -> Vector:
    return as_vector(_sum(rows, 1))


def _sum(x: Any, axis: int | None) -> Any:
    if is_tensor(x):
        import torch

        wide = torch.float64 if x.device.type != "mps" else torch.float32
        return x.sum(dim=axis, dtype=wide) if axis is not None else x.sum(dtype=wide)
    return x.sum(axis=axis, dtype=np.float64)


def largest(x: Any) -> float:
    return float(x.max())
