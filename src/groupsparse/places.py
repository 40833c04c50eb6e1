"""Where vectors are projected: on the host, or where they lie."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .bundle import is_tensor

DEVICES = {"cuda", "xpu"}  # that have float64, which the sums of the eager kernel need


def any_sharded(vectors: Any) -> bool:
    """Whether this is, or a container holds, a DTensor."""
    tensors = sys.modules.get("torch.distributed.tensor")  # none can exist before this import
    if tensors is None:
        return False
    return any(isinstance(x, tensors.DTensor) for x in members_of(vectors))


def members_of(vectors: Any) -> list[Any]:
    """What a container holds, or the one thing that was given."""
    if not isinstance(vectors, Mapping | list | tuple):
        return [vectors]
    return list(vectors.values() if isinstance(vectors, Mapping) else vectors)


def all_tensors(vectors: Any) -> bool:
    """Whether this is a container of nothing but tensors."""
    many = isinstance(vectors, Mapping | list | tuple)
    return many and len(vectors) > 0 and all(is_tensor(x) for x in members_of(vectors))


def place(tensors: Sequence[Any], kernel: str | None) -> str:
    """Where the vectors are projected: "host", or where they lie with "triton" or "torch"."""
    if any_sharded(tensors):
        return "torch"
    if kernel == "triton":
        return "triton"
    kinds = {x.device.type if is_tensor(x) else "cpu" for x in tensors}
    if not kinds <= DEVICES or kernel not in (None, "torch"):
        return "host"
    if kernel is None and kinds == {"cuda"}:
        from . import device

        return "triton" if device.usable() else "torch"
    return "torch" if kinds else "host"
