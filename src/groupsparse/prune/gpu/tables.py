"""Many tensors as rows of one table of numbers, so that one launch of a kernel sees all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

BLOCK = 4096  # entries of one program; a multiple of 8, so that no two programs share a byte
_INDEXABLE = 2**31 - BLOCK
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Layout = tuple[int, int, int, int, int, int]


@cache
def _installed() -> bool:
    return find_spec("triton") is not None  # CUDA builds of PyTorch bring it along


def usable(device: torch.device) -> bool:
    """Whether the kernels run there; elsewhere plain PyTorch gives the same answers."""
    return device.type == "cuda" and _installed()


def alike(tensors: Sequence[Tensor]) -> bool:
    """Whether all lie on one device in one dtype that the kernels read."""
    dtypes, devices = {t.dtype for t in tensors}, {t.device for t in tensors}
    return len(dtypes) == len(devices) == 1 and tensors[0].dtype in _DTYPES


def layout(tensor: Tensor) -> Layout | None:
    """Where entry i of the row-major order lies: (middle, inner, three strides, plain).

    i = (a · middle + b) · inner + c lies at a s₀ + b s₁ + c s₂; ``plain`` says that it is i itself.
    Three levels are enough for every dense format, channels_last included; None for others.

    Examples
    --------
    >>> layout(torch.empty(2, 3))
    (1, 6, 0, 0, 1, 1)
    >>> layout(torch.empty(8, 4, 3, 3).to(memory_format=torch.channels_last))
    (4, 9, 36, 1, 4, 0)
    """
    if tensor.is_contiguous():
        entries = tensor.numel()
        return (1, max(entries, 1), 0, 0, 1, 1) if entries < _INDEXABLE else None
    return _strided(tensor.shape, tensor.stride())


@lru_cache(maxsize=4096)
def _strided(shape: tuple[int, ...], steps: tuple[int, ...]) -> Layout | None:
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(shape, steps, strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == stride * size:
            sizes[-1] *= size
            strides[-1] = stride
        else:
            sizes.append(size)
            strides.append(stride)
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if len(sizes) > 3 or max(last, math.prod(shape)) >= _INDEXABLE:
        return None
    sizes = [1] * (3 - len(sizes)) + sizes
    strides = [0] * (3 - len(strides)) + strides
    return (sizes[1], sizes[2], strides[0], strides[1], strides[2], 0)


def chunks(entries: int) -> int:
    """How many programs a tensor takes."""
    return -(-entries // BLOCK)


def room(entries: int) -> int:
    """Bytes of a mask among others, rounded up so that the next begins at a multiple of 16."""
    return -(-entries // 128) * 16
