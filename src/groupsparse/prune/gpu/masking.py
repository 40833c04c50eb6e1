"""Zeroing by packed masks on a CUDA device: one launch, and the masks stay at a bit per entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import tables
from .tables import BLOCK, chunks, layout

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ADDRESS = 7  # the column of a table, as the kernels know it, where a tensor's begins
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


@dataclass
class _Table:
    """Tensors of one dtype on one device, as the kernel finds them."""

    device: torch.device
    there: Tensor
    programs: int
    tensors: int
    options: dict[str, Any]

    def launch(self) -> None:
        from . import kernels

        with _at(self.device):
            kernels.zero_all[(self.programs,)](self.there, self.tensors, **self.options)


class Sweep:
    """Tensors that are zeroed by their masks again and again: one launch for each dtype.

    What the kernel must know of them lies on the device, and is sent again only when it changed,
    as the addresses of gradients may. No tensor is kept alive.
    """

    def __init__(self) -> None:
        self._lie: list[Any] = []
        self._tables: list[_Table] = []
        self._left: list[int] = []

    def zero_(self, values: Sequence[Tensor], bits: Sequence[Tensor]) -> Sequence[int]:
        """Zero the entries whose bits are 0, but for the tensors at the places that are returned.

        Those have unusual formats, or lie where no kernel runs. In the capture of a CUDA graph it
        is all of them: the graph would keep the address of a table that is to change.
        """
        if values and values[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return range(len(values))
        lie: list[Any] = [(x.data_ptr(), x.stride(), x.shape, x.dtype) for x in values]
        lie += [mask.data_ptr() for mask in bits]
        if lie != self._lie:
            self._tables, self._left = _tables_of(values, bits)
            self._lie = lie
        for table in self._tables:
            table.launch()
        return self._left


def _tables_of(
    values: Sequence[Tensor], bits: Sequence[Tensor]
) -> tuple[list[_Table], list[int]]:
    """Tables of the tensors that a kernel can zero, and the places of the others."""
    rows: dict[tuple[torch.device, torch.dtype], list[list[int]]] = {}
    programs: dict[tuple[torch.device, torch.dtype], int] = {}
    left: list[int] = []
    for place, (x, mask) in enumerate(zip(values, bits, strict=True)):
        kind, entries = (x.device, x.dtype), x.numel()
        where = layout(x) if tables.usable(x.device) and x.dtype in _DTYPES else None
        if where is None or mask.device != x.device or mask.numel() != -(-entries // 8):
            left.append(place)
            continue
        begin = programs.get(kind, 0)
        row = [0] * _ADDRESS + [x.data_ptr(), *where, entries, mask.data_ptr(), 0, begin]
        rows.setdefault(kind, []).append(row)
        programs[kind] = begin + chunks(entries)
    return [_table(rows[kind], *kind, count) for kind, count in programs.items() if count], left


def _table(
    rows: list[list[int]], device: torch.device, dtype: torch.dtype, programs: int
) -> _Table:
    import triton
    import triton.language as tl

    names = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    options = {
        "DTYPE": names.get(dtype, tl.float64),
        "PADDED": triton.next_power_of_2(len(rows)),
        "BLOCK": BLOCK,
        "num_warps": _WARPS,
    }
    # New memory each time: launches that are still queued read the table before.
    there = torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
    return _Table(device, there, programs, len(rows), options)


def _at(device: torch.device) -> torch.cuda.device:
    return torch.cuda.device(device if device.type == "cuda" else -1)  # -1: no change
