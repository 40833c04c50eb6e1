"""How tensors lie in memory, and which of their entries are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layout import _plain


def repeats_memory(x: Tensor) -> bool:
    """Whether two entries of a tensor lie at one address."""
    extent = 1
    for step, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and step < extent:
            return True
        extent += (size - 1) * step
    return False


def vectors_last(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Memory for a tensor of this shape in which every vector lies in one piece."""
    order = [a for a in range(x.ndim) if a not in axes] + list(axes)
    stage = torch.empty([x.shape[a] for a in order], dtype=x.dtype, device=x.device)
    return stage.permute([order.index(a) for a in range(x.ndim)])


def span(x: Tensor) -> tuple[int, int]:
    """The addresses from the first to behind the last entry."""
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def offence(x: Tensor, axes: tuple[int, ...], name: str) -> str | None:
    """The sentence that names the first entry that is not finite; None if there is none."""
    bad = ~torch.isfinite(x)
    if not bool(bad.any()):
        return None
    at = tuple(int(k) for k in bad.nonzero()[0])
    entry = tuple(at[a] for a in axes)
    vector = tuple(k for a, k in enumerate(at) if a not in axes)
    where = f"vector {_plain(vector)}, " if vector else ""
    value = float(x[at])
    return f"{name}: {where}index {_plain(entry)} is {value}; expected finite numbers"
