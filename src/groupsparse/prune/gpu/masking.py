"""Zero by a packed mask on a CUDA device: one launch, and the mask stays at a bit per entry."""

from __future__ import annotations

import torch
from torch import Tensor

from .tables import BLOCK, chunks, layout

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def zero_(values: Tensor, bits: Tensor) -> bool:
    """Zero the entries whose bit is 0; False, and nothing done, where the format is unusual."""
    where = layout(values)
    if where is None or values.dtype not in _DTYPES:
        return False
    from . import kernels

    *numbers, plain = where
    if values.numel() > 0:
        with torch.cuda.device(values.device if values.is_cuda else -1):
            kernels.zero[(chunks(values.numel()),)](
                values, bits, values.numel(), *numbers, PLAIN=bool(plain), BLOCK=BLOCK, num_warps=4
            )
    return True
