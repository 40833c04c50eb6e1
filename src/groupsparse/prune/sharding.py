"""Parameters that several processes hold parts of (DTensor, as FSDP2's ``fully_shard`` makes them).

Everything here works on the local part and exchanges counts, never entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

_AVAILABLE = dist.is_available()
if _AVAILABLE:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether other processes hold other parts of this tensor."""
    return _AVAILABLE and isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies in this process: a view, so that writing to it counts."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Shards:
    """The process groups over which one tensor is split, slowest first."""

    groups: tuple[dist.ProcessGroup, ...]
    device: str

    def __call__(self, counts: Tensor) -> Tensor:
        """Add counts over all parts of the tensor."""
        moved = counts.to(self.device)
        for group in self.groups:
            dist.all_reduce(moved, group=group)
        return moved.to(counts.device)

    def earlier(self, count: int) -> tuple[int, int]:
        """The sums of everybody's ``count``: over the parts before this one, and over all."""
        before, total = 0, count
        for group in reversed(self.groups):
            size = dist.get_world_size(group)
            mine = torch.tensor([total], device=self.device)
            gathered = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(gathered, mine, group=group)
            counts = [int(each) for each in gathered]
            before += sum(counts[: dist.get_rank(group)])
            total = sum(counts)
        return before, total


def shards_of(tensor: Tensor) -> Shards | None:
    """Over whom a tensor is split; None for one that this process holds whole."""
    if not is_sharded(tensor):
        return None
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    split = [dim for dim, placement in enumerate(placements) if not placement.is_replicate()]
    if not split:
        return None
    return Shards(tuple(mesh.get_group(dim) for dim in split), mesh.device_type)


def gather(tensor: Tensor) -> Tensor:
    """The whole tensor; every process that holds a part must call this."""
    return tensor.detach().full_tensor() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]


def scatter_(tensor: Tensor, whole: Tensor) -> None:
    """Write this process's part of ``whole``; every process must hold the same one."""
    if not is_sharded(tensor):
        tensor.detach().copy_(whole)
        return
    from ..sharded.pieces import piece_of, take

    piece = piece_of(tensor, "the tensor")
    piece.local.copy_(take(whole, piece))
