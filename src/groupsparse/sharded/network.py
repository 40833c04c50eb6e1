"""What crosses the network: numbers per vector, and numbers per group. Never entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidInput

if TYPE_CHECKING:
    from .part import Part

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


class Network:
    """All processes that hold parts of some tensors, and the two kinds of sums over them.

    A vector may be split over some dimensions of its tensor's mesh. Numbers per vector are added up
    over these, those of all tensors in one buffer, so that it takes one collective per mesh
    dimension however many tensors there are. Numbers per group are added up over everybody.
    Decisions are made on what was added up over everybody, so every process makes the same.
    """

    def __init__(self, meshes: Sequence[Any]) -> None:
        # In one order everywhere, or processes would wait for each other in a circle.
        self.groups: dict[str, Any] = {}
        hub = max(meshes, key=lambda mesh: mesh.size())
        self.ranks = set(_ranks(hub))
        self.first = min(self.ranks)
        if any(not self.ranks.issuperset(_ranks(mesh)) for mesh in meshes):
            raise InvalidInput(
                "the tensors are sharded over meshes of which none has all the processes; expected "
                "one mesh, or parts of one"
            )
        everybody = dist.group.WORLD
        if hub.size() == dist.get_world_size() and everybody is not None:
            self.everybody = [everybody]
        else:
            self.everybody = [hub.get_group(dim) for dim in range(hub.ndim) if hub.size(dim) > 1]
        kind = hub.device_type
        where = getattr(torch, kind, None)
        counted = kind != "cpu" and hasattr(where, "current_device")
        self.device = torch.device(kind, where.current_device()) if counted else torch.device(kind)  # type: ignore[union-attr]

    def splits(self, mesh: Any, dims: Sequence[int]) -> set[str]:
        """Make these dimensions of a mesh known; the names of their process groups."""
        groups = [mesh.get_group(dim) for dim in dims]
        self.groups.update((group.group_name, group) for group in groups)
        return {group.group_name for group in groups}

    def counts(self, mesh: Any, dims: Sequence[int]) -> bool:
        """Whether this process is the one that counts, of those that know the same sums.

        ``dims`` are the dimensions of the mesh along which the sums are the same.
        """
        if mesh is None:  # a tensor that everybody holds whole
            return dist.get_rank() == self.first
        at = mesh.get_coordinate()
        return all(at[dim] == 0 for dim in dims) and self.first in _ranks(mesh)

    def agree(self, description: str, problem: Exception | None) -> None:
        """Raise in every process if there is a problem in one, or if the calls differ."""
        digest = float(_checksum(description))
        sides = [digest, -digest, float(problem is not None)]
        found = self.largest(torch.tensor(sides, dtype=torch.float64))
        if problem is not None:
            raise problem
        if found[2] > 0.0:
            raise InvalidInput("another process could not use its part of the sharded tensors")
        if found[0] != -found[1]:
            raise InvalidInput(
                "the processes called with different tensors or options; expected the same call"
            )

    def total(self, values: Tensor) -> list[float]:
        """The sums over everybody of each of these numbers."""
        return self._over_everybody(values, SUM)

    def largest(self, values: Tensor) -> list[float]:
        """The maxima over everybody of each of these numbers."""
        return self._over_everybody(values, MAX)

    def _over_everybody(self, values: Tensor, op: Any) -> list[float]:
        buffer = values.to(device=self.device, dtype=torch.float64)
        for group in self.everybody:
            dist.all_reduce(buffer, op, group=group)
        numbers: list[float] = buffer.tolist()
        return numbers

    def over_vectors(
        self, parts: Sequence[Part], values: Sequence[Tensor], op: Any
    ) -> list[Tensor]:
        """Sums or maxima of numbers per vector, over the processes that hold parts of the vector.

        Every process that has a part of these vectors must give the same ``parts``.
        """
        values = list(values)
        for name, group in self.groups.items():
            chosen = [i for i, part in enumerate(parts) if name in part.splits]
            if not chosen:
                continue
            flat = [values[i].reshape(-1).to(self.device) for i in chosen]
            buffer = torch.cat(flat)
            if buffer.numel() == 0:  # nobody in the group has any of these vectors
                continue
            dist.all_reduce(buffer, op, group=group)
            pieces = torch.split(buffer, [piece.numel() for piece in flat])
            for i, piece in zip(chosen, pieces, strict=True):
                values[i] = piece.reshape(values[i].shape).to(values[i].device)
        return values


class Alone:
    """The network of a process that holds all of every tensor, on some device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def splits(self, mesh: Any, dims: Sequence[int]) -> set[str]:
        """No vector goes on elsewhere."""
        return set()

    def counts(self, mesh: Any, dims: Sequence[int]) -> bool:
        """Nobody else knows the sums."""
        return True

    def agree(self, description: str, problem: Exception | None) -> None:
        """Raise if there is a problem."""
        if problem is not None:
            raise problem

    def total(self, values: Tensor) -> list[float]:
        """The numbers themselves."""
        numbers: list[float] = values.to(torch.float64).tolist()
        return numbers

    largest = total

    def over_vectors(
        self, parts: Sequence[Part], values: Sequence[Tensor], op: Any
    ) -> list[Tensor]:
        """The numbers themselves."""
        return list(values)


def _ranks(mesh: Any) -> list[int]:
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks


def _checksum(text: str) -> int:
    """A number that a float64 holds exactly, the same in every process (``hash`` is not)."""
    import hashlib

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
