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


def on_host(*parts: Any) -> list[Vector]:
    """Short vectors and numbers as float64 on the host, where all decisions are made.

    Tensors come over together: the host waits for the device once, not once for each of them.
    """
    if not is_tensor(parts[0]):
        return [np.asarray(part, dtype=np.float64).ravel() for part in parts]
    import torch

    flat = [part.detach().reshape(-1).to(wide(part)) for part in parts]
    together = torch.cat(flat).cpu().double().numpy()
    return np.split(together, np.cumsum([len(part) for part in flat])[:-1])


def as_vector(x: Any) -> Vector:
    """One short vector or small matrix as float64 on the host."""
    return on_host(x)[0].reshape(tuple(x.shape))


def like(values: Any, reference: Any) -> Any:
    """``values`` as what ``reference`` is: same library, dtype and device."""
    if is_tensor(reference):
        return reference.new_tensor(np.asarray(values))
    return np.asarray(values, dtype=reference.dtype)


def empty_like(x: Any) -> Any:
    return x.new_empty(x.shape) if is_tensor(x) else np.empty_like(x)


def copy(x: Any) -> Any:
    return x.clone() if is_tensor(x) else x.copy()


def dot(x: Any, y: Any) -> Any:
    """Σ xy, summed in float64, as a number or a tensor that stays where it is."""
    return _sum(x * y, None)


def row_sums(rows: Any) -> Any:
    return _sum(rows, 1)


def row_squares(rows: Any) -> Any:
    """The squared Euclidean norm of each row, summed in float64."""
    return _sum(rows * rows, 1)


def gram_of(rows: Any) -> Any:
    """F Fᵀ of the rows of F, in float64.

    In float32 all of its long sums of squares round the same way, which shows in what it is
    subtracted from: 1e-7 of ‖X‖² is the third digit of an error of 1 %.
    """
    to = wide(rows) if is_tensor(rows) else np.dtype(np.float64)
    if rows.dtype == to:
        return rows @ rows.T
    # In pieces that stay in the cache; a device would rather have one.
    size = 1 << 26 if is_tensor(rows) and rows.device.type != "cpu" else 1 << 18
    step, total = max(1, size // max(len(rows), 1)), None
    for begin in range(0, rows.shape[1], step):
        piece = rows[:, begin : begin + step]
        piece = piece.to(to) if is_tensor(piece) else piece.astype(to)
        part = piece @ piece.T
        total = part if total is None else total + part
    return total


def as_dtype_of(x: Any, reference: Any) -> Any:
    """``x`` in the dtype of another array of its library."""
    if is_tensor(x):
        return x.to(reference.dtype)
    return x.astype(reference.dtype, copy=False)


def inner(x: Any, y: Any) -> float:
    """Σ xy as a number on the host."""
    return float(dot(x, y))


def norms(rows: Any) -> Vector:
    """Euclidean norms of the rows, on the host."""
    return np.sqrt(as_vector(row_squares(rows)))


def wide(x: Any) -> Any:
    """The dtype in which a tensor is summed: float64 where its device has that."""
    import torch

    return torch.float32 if x.device.type == "mps" else torch.float64


def _sum(x: Any, axis: int | None) -> Any:
    if is_tensor(x):
        return x.sum(dim=axis, dtype=wide(x)) if axis is not None else x.sum(dtype=wide(x))
    return x.sum(axis=axis, dtype=np.float64)
