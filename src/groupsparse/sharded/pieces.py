"""Which entries of a sharded tensor this process holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput, UnsupportedType

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Piece:
    """This process's part of a tensor.

    ``index`` has, for every dimension, where in the whole tensor the local entries lie, or None
    where all of the dimension is here. ``cuts`` has the dimensions of the mesh that split it.
    """

    local: Tensor
    shape: tuple[int, ...]
    index: tuple[Tensor | None, ...]
    cuts: tuple[tuple[int, ...], ...]
    mesh: Any = None
    placements: tuple[Any, ...] = ()

    @property
    def replicated(self) -> list[int]:
        """The dimensions of the mesh that do not split the tensor."""
        return [dim for dim, p in enumerate(self.placements) if p.is_replicate()]

    def whole(self, dim: int) -> Tensor:
        """The places of the local entries along a dimension."""
        at = self.index[dim]
        return torch.arange(self.shape[dim]) if at is None else at


def is_dtensor(x: Any) -> bool:
    """Whether this is a DTensor."""
    from torch.distributed.tensor import DTensor

    return isinstance(x, DTensor)


def piece_of(tensor: Any, name: str) -> Piece:
    """Describe a DTensor, or a plain tensor as one that every process holds whole."""
    if not isinstance(tensor, Tensor):
        raise UnsupportedType(
            f"{name} is a {type(tensor).__name__} beside sharded tensors; expected tensors only"
        )
    if tensor.dtype not in DTYPES:
        raise UnsupportedType(f"{name} has dtype {tensor.dtype}; expected floating point numbers")
    if not is_dtensor(tensor):
        nothing: tuple[Any, ...] = (None,) * tensor.ndim
        return Piece(tensor.detach(), tuple(tensor.shape), nothing, ((),) * tensor.ndim)
    sharded: Any = tensor
    mesh, placements = sharded.device_mesh, sharded.placements
    if mesh.get_coordinate() is None:
        raise InvalidInput(f"{name} lies on a mesh that this process is not part of")
    index, cuts = _places(tuple(tensor.shape), mesh, placements, name)
    local: Tensor = sharded.detach().to_local()
    expected = [n if at is None else len(at) for n, at in zip(tensor.shape, index, strict=True)]
    if list(local.shape) != expected:
        if local.numel() or 0 not in expected:
            raise UnsupportedType(
                f"{name}: this process holds a part of shape {tuple(local.shape)}; expected "
                f"{tuple(expected)} from {placements} of shape {tuple(tensor.shape)}"
            )
        local = local.new_empty(expected)
    return Piece(local, tuple(tensor.shape), index, cuts, mesh, tuple(placements))


def _places(
    shape: Sequence[int], mesh: Any, placements: Sequence[Any], name: str
) -> tuple[tuple[Tensor | None, ...], tuple[tuple[int, ...], ...]]:
    index: list[Tensor | None] = [None] * len(shape)
    cuts: list[tuple[int, ...]] = [()] * len(shape)
    for dim, (placement, mine) in enumerate(zip(placements, mesh.get_coordinate(), strict=True)):
        if placement.is_replicate():
            continue
        # What fully_shard makes of a tensor that tensor parallelism has split (_StridedShard) is no
        # Shard in some versions of PyTorch; what it has in all of them is a dim and a split_factor.
        along = None if placement.is_partial() else getattr(placement, "dim", None)
        if along is None:
            raise UnsupportedType(
                f"{name} is placed as {placement!r}; expected Shard or Replicate (redistribute it)"
            )
        before = index[along]
        before = torch.arange(shape[along]) if before is None else before
        pieces = _chunks(before, int(getattr(placement, "split_factor", 1)))
        index[along] = torch.cat([_chunks(piece, mesh.size(dim))[mine] for piece in pieces])
        if mesh.size(dim) > 1:
            cuts[along] = (*cuts[along], dim)
    return tuple(index), tuple(cuts)


def _chunks(index: Tensor, count: int) -> list[Tensor]:
    """``torch.chunk``, but for empty ones at the end that make the count full."""
    size = -(-len(index) // count)
    return [index[i * size : (i + 1) * size] for i in range(count)]


def take(whole: Tensor, piece: Piece, dims: Sequence[int] | None = None) -> Tensor:
    """The part of ``whole`` that lies where the piece does, along all or some dimensions."""
    for dim in range(whole.ndim) if dims is None else dims:
        at = piece.index[dim]
        if at is not None and whole.shape[dim] == piece.shape[dim]:
            whole = whole.index_select(dim, at.to(whole.device))
    return whole
