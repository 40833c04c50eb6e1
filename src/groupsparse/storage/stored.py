"""What all kinds of files have in common: a list of tensors, each read when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FLOATS: Mapping[str, str] = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}
OTHERS: Mapping[str, str] = {
    "BOOL": "?", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "C64": "<c8", "C128": "<c16",
}  # fmt: skip
NAMES = {np.dtype(code): name for name, code in {**FLOATS, **OTHERS}.items() if name != "BF16"}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file: what it is, without its values.

    ``dtype`` is named as in safetensors (F32, BF16, I64) or, where that has no name, as in NumPy.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def floating(self) -> bool:
        """Whether its values can be projected."""
        return self.dtype in FLOATS

    @property
    def countable(self) -> bool:
        """Whether its zeros can be counted: it holds numbers of a kind that NumPy knows."""
        return self.dtype in FLOATS or self.dtype in NAMES.values()

    @property
    def size(self) -> int:
        """How many entries it has."""
        return math.prod(self.shape)


# What becomes of the tensors of these names: called with each one's values (floats, bfloat16 as
# float32) it returns the new ones, which may be the same array.
Change = Callable[[Stored, NDArray[Any]], NDArray[Any]]


class Store(Protocol):
    """A file of tensors."""

    path: Path

    @property
    def tensors(self) -> Sequence[Stored]:
        """Its tensors, in the order in which they lie there."""

    def read(self, tensor: Stored) -> NDArray[Any]:
        """The values of a tensor in an array of their own; bfloat16 as float32."""

    def rewrite(self, out: Path, changes: Mapping[str, Change]) -> None:
        """Write the file again, with these tensors changed and everything else as it is.

        ``out`` may be the file itself. It is replaced at the very end, when all has been written.
        """


def decoded(raw: NDArray[np.uint8], tensor: Stored) -> NDArray[Any]:
    """The values in these bytes."""
    values: NDArray[Any] = raw.view({**FLOATS, **OTHERS}[tensor.dtype])
    if tensor.dtype == "BF16":
        values = widened(values)
    return values.reshape(tensor.shape)


def encoded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The values in the dtype of the file, contiguous."""
    if dtype == "BF16":
        return narrowed(values)
    return np.ascontiguousarray(values, dtype=FLOATS[dtype])


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The values as they will be read again; only bfloat16 has a wider stand-in."""
    return widened(narrowed(values)).reshape(values.shape) if dtype == "BF16" else values


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 as float32: the upper half of its bits."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def narrowed(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 as bfloat16, rounded to nearest and to even, as the hardware does; finite only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32)
    carry = bits >> 16
    carry &= 1
    carry += 0x7FFF
    carry += bits
    carry >>= 16
    return carry.astype(np.uint16)
