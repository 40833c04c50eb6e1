"""Zeroing by packed masks on a CUDA device: one launch, and the masks stay at a bit per entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import tables
from .tables import BLOCK, Layout, chunks, layout

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Columns of a table as the kernels know it.
_ADDRESS, _LAYOUT, _BITS = 7, 8, 15
_WARPS = 4


def zero_(values: Tensor, bits: Tensor) -> bool:
    """Zero the entries whose bit is 0; False, and nothing done, where the format is unusual."""
    where = layout(values)
    if where is None or values.dtype not in _DTYPES:
        return False
    from . import kernels

    *numbers, plain = where
    if values.numel() > 0:
        with _at(values.device):
            kernels.zero[(chunks(values.numel()),)](
                values, bits, values.numel(), *numbers, PLAIN=bool(plain), BLOCK=BLOCK,
                num_warps=_WARPS,
            )  # fmt: skip
    return True


class _Table:
    """Tensors of one dtype on one device, as the kernel finds them."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.places: list[int] = []  # of its tensors, among all
        self.rows: list[list[int]] = []
        self.programs = 0

    def add(self, place: int, where: Layout, entries: int) -> None:
        """A tensor with this layout; its addresses come with `send`."""
        self.places.append(place)
        self.rows.append([0] * _LAYOUT + [*where, entries, 0, 0, self.programs])
        self.programs += chunks(entries)

    def send(self, addresses: Sequence[int], bits: Sequence[int]) -> None:
        """Bring the table onto the device, into new memory: what is queued reads the one before."""
        numbers = np.array(self.rows, dtype=np.int64)
        numbers[:, _ADDRESS] = [addresses[place] for place in self.places]
        numbers[:, _BITS] = [bits[place] for place in self.places]
        self.there = torch.from_numpy(numbers).to(self.device, non_blocking=True)

    def zero_(self) -> None:
        """Queue the kernel."""
        import triton
        import triton.language as tl

        from . import kernels

        names = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
        with _at(self.device):
            kernels.zero_all[(self.programs,)](
                self.there, len(self.rows), DTYPE=names.get(self.dtype, tl.float64),
                PADDED=triton.next_power_of_2(len(self.rows)), BLOCK=BLOCK, num_warps=_WARPS,
            )  # fmt: skip


class Sweep:
    """Tensors that are zeroed by their masks again and again: one launch for each dtype.

    What the kernel must know of them lies on the device, and is sent again only when it changed,
    as the addresses of gradients may. No tensor is kept alive.
    """

    def __init__(self) -> None:
        self._formats: list[Any] = []
        self._addresses: tuple[list[int], list[int]] = ([], [])
        self._tables: list[_Table] = []
        self._left: list[int] = []

    def zero_(self, values: Sequence[Tensor], bits: Sequence[Tensor]) -> Sequence[int]:
        """Zero the entries whose bits are 0, but for the tensors at the places that are returned.

        Those have unusual formats, or lie where no kernel runs. In the capture of a CUDA graph it
        is all of them: the graph would keep the address of a table that is to change.
        """
        if values and values[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return range(len(values))
        formats = [(x.stride(), x.shape, x.dtype, x.device) for x in values]
        addresses = [x.data_ptr() for x in values], [mask.data_ptr() for mask in bits]
        if formats != self._formats:
            self._tables, self._left = _tables_of(values, bits)
            self._formats, self._addresses = formats, ([], [])
        if addresses != self._addresses:
            for table in self._tables:
                table.send(*addresses)
            self._addresses = addresses
        for table in self._tables:
            table.zero_()
        return self._left


def _tables_of(values: Sequence[Tensor], bits: Sequence[Tensor]) -> tuple[list[_Table], list[int]]:
    """Tables of the tensors that a kernel can zero, and the places of the others."""
    found: dict[tuple[torch.device, torch.dtype], _Table] = {}
    left: list[int] = []
    for place, (x, mask) in enumerate(zip(values, bits, strict=True)):
        where = layout(x) if tables.usable(x.device) and x.dtype in _DTYPES else None
        if where is None or mask.device != x.device:
            left.append(place)
        elif x.numel() > 0:
            kind = x.device, x.dtype
            found.setdefault(kind, _Table(*kind)).add(place, where, x.numel())
    return list(found.values()), left


def _at(device: torch.device) -> torch.cuda.device:
    return torch.cuda.device(device if device.type == "cuda" else -1)  # -1: no change
