"""Masks at one bit per entry: bit i of byte j speaks of entry 8j + i in row-major order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput, UnsupportedType
from .gpu import masking, tables

# Integers of the size of an entry.
BIT_PATTERN = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class PackedMask:
    """Which entries of one tensor are kept (bit 1) and which are zero (bit 0).

    Examples
    --------
    >>> import torch
    >>> packed = PackedMask.pack(torch.tensor([[True, False, True]]))
    >>> packed.bits.tolist(), packed.unpack().tolist(), packed.zeros
    ([5], [[True, False, True]], 1)
    """

    bits: Tensor
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        expected = -(-math.prod(self.shape) // 8)
        if self.bits.dtype != torch.uint8 or tuple(self.bits.shape) != (expected,):
            raise InvalidInput(
                f"a mask of shape {self.shape} has bits {tuple(self.bits.shape)} of "
                f"{self.bits.dtype}; expected {expected} of torch.uint8"
            )

    @classmethod
    def pack(cls, kept: Tensor) -> PackedMask:
        """Pack a boolean tensor, on its device."""
        if not isinstance(kept, Tensor) or kept.dtype != torch.bool:
            raise UnsupportedType(
                f"a mask is {getattr(kept, 'dtype', type(kept).__name__)}; expected a tensor of "
                "torch.bool, True where an entry is kept"
            )
        flat = kept.reshape(-1).view(torch.uint8)
        if flat.device.type == "cpu":  # NumPy is ten times as fast there
            bits = torch.from_numpy(np.packbits(flat.numpy(), bitorder="little"))
        else:
            bits = pack_columns(flat)
        return cls(bits, tuple(kept.shape))

    @property
    def numel(self) -> int:
        """How many entries the mask speaks of."""
        return math.prod(self.shape)

    def to(self, device: torch.device) -> PackedMask:
        """The same mask on a device."""
        return self if self.bits.device == device else PackedMask(self.bits.to(device), self.shape)

    def unpack(self) -> Tensor:
        """The boolean tensor, True where an entry is kept."""
        if self.bits.device.type == "cpu":
            entries = np.unpackbits(self.bits.numpy(), count=self.numel, bitorder="little")
            flat = torch.from_numpy(entries)
        else:
            flat = unpack_columns(self.bits)[: self.numel]
        return flat.view(torch.bool).view(self.shape)

    def zero_(self, values: Tensor) -> None:
        """Set the entries of a tensor on the mask's device that are not kept to zero."""
        by_kernel = tables.usable(values.device) and masking.zero_(values, self.bits)
        if not (by_kernel or self._zero_on_cpu(values)):
            values.masked_fill_(self.unpack().logical_not_(), 0)
        else:
            tell_autograd([values])

    def _zero_on_cpu(self, values: Tensor) -> bool:
        """In one pass over the memory; False, and nothing done, where the format is unusual."""
        pattern = BIT_PATTERN.get(values.itemsize)
        if values.device.type != "cpu" or pattern is None or not values.is_contiguous():
            return False
        from .loops import clear  # loads numba

        clear(values.detach().view(-1).view(pattern).numpy(), self.bits.numpy())
        return True

    @property
    def zeros(self) -> int:
        """How many entries are zero."""
        return self.numel - int(self.unpack().count_nonzero())


@dataclass(frozen=True)
class Bundle:
    """Masks whose bits lie one after the other in one tensor, each in its `tables.room`.

    To take it apart is work for as many tensors as there are masks.
    """

    names: Sequence[str]
    shapes: Sequence[Sequence[int]]
    bits: Tensor

    def masks(self) -> dict[str, PackedMask]:
        """Each mask with its part of the bits."""
        sizes = []  # of each mask, and of what is left of its room
        for shape in self.shapes:
            entries = math.prod(shape)
            own = -(-entries // 8)
            sizes += [own, tables.room(entries) - own]
        pieces = torch.split(self.bits, sizes)[::2]
        return {
            name: PackedMask(piece, tuple(shape))
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }


def zero_all_(pairs: Sequence[tuple[Tensor, PackedMask]], sweep: masking.Sweep) -> None:
    """`PackedMask.zero_` of many tensors, of which ``sweep`` remembers how they lie."""
    values = [value for value, _ in pairs]
    left = set(sweep.zero_(values, [mask.bits for _, mask in pairs]))
    tell_autograd(value for place, value in enumerate(values) if place not in left)
    for place in left:
        value, mask = pairs[place]
        mask.zero_(value)


def tell_autograd(written: Iterable[Tensor]) -> None:
    """That their memory was written: no kernel of ours does."""
    versioned = [values for values in written if not values.is_inference()]
    if _counts_many():
        torch.autograd.graph.increment_version(versioned)
    else:
        for values in versioned:
            torch.autograd.graph.increment_version(values)


@cache
def _counts_many() -> bool:
    """Whether this PyTorch increments the versions of many tensors in one call."""
    try:
        torch.autograd.graph.increment_version([torch.empty(0, device="cpu")])
    except (TypeError, RuntimeError, AttributeError):  # before PyTorch 2.6
        return False
    return True


def pack_columns(flat: Tensor) -> Tensor:
    """Eight bytes of 0 or 1 into one, on any device."""
    missing = -flat.numel() % 8
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    columns = flat.view(-1, 8)
    bits = columns[:, 0].clone()
    for place in range(1, 8):
        bits |= columns[:, place] << place
    return bits


def unpack_columns(bits: Tensor) -> Tensor:
    """The inverse of `pack_columns`; the last bytes may be padding."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits.unsqueeze(1) >> places) & 1).view(-1)
