"""From what the user holds to blocks that kernels read, and back.

Everything about shapes, dtypes and weights is settled here, once, before any kernel runs. A block
is a view of the user's memory wherever its strides allow it, so nothing is copied for the usual
arrays: C or Fortran order, any axes, the parameters of a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput, NonFiniteInput, UnsupportedType

Axis = int | Sequence[int] | None
NO_EXPONENT = -(1 << 20)
BIG = 1e300  # a threshold that leaves nothing of any vector in range
LARGEST = {size: float(np.finfo(f"f{size}").max) for size in (2, 4, 8)}
FLOATS = (np.float16, np.float32, np.float64)


@dataclass(slots=True)
class Block:
    """Vectors of one length, side by side: ``values[a, :]`` or ``values[a, :, b]`` is one vector.

    ``weights`` broadcasts against ``values``. ``beta`` is 1/(‖w‖₂ − min w) of each vector, a float
    where all vectors share it. ``rate`` is what turns the multiplier into a threshold, t = μ·rate:
    ``beta``, but for vectors whose scale had to be changed. Kernels write into ``out``.
    """

    values: NDArray[Any]
    weights: NDArray[np.float64] | None
    beta: float | NDArray[np.float64]
    top: float  # Σ ‖w‖₂ β over the vectors
    rate: float | NDArray[np.float64]
    out: NDArray[Any] | None = None

    @property
    def uniform(self) -> bool:
        """Whether all vectors have the same threshold."""
        return isinstance(self.rate, float)

    def threshold(self, mu: float) -> float | NDArray[np.float64]:
        """t = μ·rate of every vector; finite, so that no weight of 0 turns it into a NaN."""
        if isinstance(self.rate, float):
            t = mu * self.rate
            return t if t < BIG else BIG
        with np.errstate(over="ignore"):
            return np.minimum(mu * self.rate, BIG)

    @property
    def vectors(self) -> int:
        return int(self.values.size // self.values.shape[1])

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape of an array with one entry per vector."""
        return self.values.shape[:1] + self.values.shape[2:]

    @property
    def length(self) -> int:
        return int(self.values.shape[1])


@dataclass(slots=True)
class Item:
    """One array of the user's: where it lies, what its vectors are, and the block made of it."""

    array: NDArray[Any]
    axes: tuple[int, ...]
    name: str
    order: tuple[int, ...]  # of the axes, as (outer, vector, inner) ones
    block: Block | None = None  # None: vectors of length 1, which have no Hoyer measure
    target: NDArray[Any] | None = None  # where the answer goes; ``array`` itself for in-place calls
    weights: NDArray[np.float64] | None = None
    names: list[str] | None = None  # of the vectors, where the array was put together from several
    exponent: NDArray[np.intp] | None = None  # powers of two taken out of the block's vectors

    @property
    def largest(self) -> float:
        """The largest number that the target can hold."""
        return LARGEST[self.array.itemsize]

    def copy(self) -> None:
        """Answer with the input itself."""
        if self.target is not self.array:
            np.copyto(self.target, self.array)  # type: ignore[arg-type]

    def open_target(self, *, beside: bool, keep: bool) -> None:
        """Where the kernel is to write: into the target, or beside it where that cannot be viewed.

        ``keep`` saves the input from being overwritten while it is still needed.
        """
        block = self.block
        assert block is not None
        assert self.target is not None
        direct = None if beside else _view_like(block.values, self.target, self.order)
        block.out = np.empty_like(block.values) if direct is None else direct
        if keep and np.may_share_memory(block.values, block.out):
            block.values = block.values.copy()

    def check_range(self) -> None:
        """Raise where the answer cannot be written in the target's dtype."""
        assert self.block is not None
        assert self.target is not None
        assert self.block.out is not None
        if np.may_share_memory(self.block.out, self.target):
            return
        with np.errstate(over="ignore"):
            largest = np.abs(self._answered()).max()
        if not largest <= self.largest:
            raise InvalidInput(
                f"{self.name}: an entry of the answer is {largest}, out of the range of "
                f"{self.target.dtype} (largest {self.largest}); scale the vectors down first"
            )

    def _answered(self) -> NDArray[Any]:
        assert self.block is not None
        assert self.block.out is not None
        out = self.block.out
        return out if self.exponent is None else np.ldexp(out, self.exponent[:, None])

    def close_target(self) -> None:
        """Bring what the kernel wrote beside the target into it."""
        assert self.target is not None
        if self.block is None:
            self.copy()
        elif not np.may_share_memory(self.block.out, self.target):
            arranged = self.target.transpose(self.order)
            with np.errstate(under="ignore"):
                arranged[...] = self._answered().reshape(arranged.shape)

    def on_host(self) -> Block:
        """The block as NumPy arrays."""
        assert self.block is not None
        return self.block

    def answer(self) -> Block:
        """The block of what is in the target."""
        assert self.block is not None
        assert self.target is not None
        block = self.block
        values = _as_block(self.target, self.order, block.values.shape)
        return Block(values, block.weights, block.beta, block.top, block.beta)

    def exponents(self) -> tuple[int, int]:
        """The smallest and the largest power of two among the largest entries of the vectors."""
        assert self.block is not None
        largest = np.abs(self.block.values).max(axis=1)
        self.exponent = np.where(largest > 0.0, np.frexp(largest)[1], NO_EXPONENT)
        some = self.exponent[largest > 0.0]
        return (int(some.min()), int(some.max())) if some.size else (0, 0)

    def rescale(self, middle: int) -> None:
        """Scale every vector to about 1 by a power of two; its threshold rate goes along."""
        block = self.block
        assert block is not None
        assert self.exponent is not None
        self.exponent[self.exponent == NO_EXPONENT] = middle  # zero vectors
        values = np.ldexp(block.values.astype(np.float64), -self.exponent[:, None])
        rate = np.ldexp(block.beta, np.clip(middle - self.exponent, -1020, 1020))
        self.block = Block(values, block.weights, block.beta, block.top, rate)

    def complain_if_not_finite(self) -> None:
        """Raise the error that names the first vector and index that are not finite."""
        bad = ~np.isfinite(self.array)
        if not bad.any():
            return
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        entry = tuple(at[a] for a in self.axes)
        vector = tuple(i for a, i in enumerate(at) if a not in self.axes)
        if self.names is not None:
            raise NonFiniteInput(
                f"{self.names[vector[0]]}: index {_plain(entry)} is {self.array[at]}; "
                "expected finite numbers"
            )
        where = f"index {_plain(entry)}"
        if vector:
            where = f"vector {_plain(vector)}, {where}"
        raise NonFiniteInput(f"{self.name}: {where} is {self.array[at]}; expected finite numbers")


def real_array(x: Any, name: str) -> NDArray[Any]:
    """The array itself where its dtype is one we work in; integers become float64."""
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedType(
            f"{name} is a masked array, and the projection knows no masks; fill it first"
        )
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged rows, tensors with gradients
        raise UnsupportedType(f"{name} cannot be taken as an array: {error}") from error
    kind = array.dtype.kind
    if kind == "O" and array.ndim == 0 and not isinstance(x, np.ndarray):
        raise UnsupportedType(
            f"{name} is a {type(x).__name__}, of dtype object; expected an array, a tensor, or a "
            "list, tuple or dict of these"
        )
    if kind in "iu":
        return array.astype(np.float64)
    if kind != "f" or array.dtype.type not in FLOATS:
        raise UnsupportedType(
            f"{name} has dtype {array.dtype}; expected float16, float32, float64 or integers"
        )
    return array


def normal_axes(axis: Axis, ndim: int, name: str) -> tuple[int, ...]:
    """The axes as non-negative, distinct numbers."""
    if ndim == 0:
        raise InvalidInput(f"{name} is a single number; expected at least one vector")
    if axis is None:
        return tuple(range(ndim))
    given = (axis,) if isinstance(axis, int | np.integer) else axis
    listed = isinstance(given, tuple | list)
    if not listed or not all(isinstance(a, int | np.integer) for a in given):
        raise UnsupportedType(f"axis is {axis!r}; expected an int, a tuple of ints or None")
    axes = tuple(int(a) + ndim if a < 0 else int(a) for a in given)
    if not axes or any(a < 0 or a >= ndim for a in axes) or len(set(axes)) != len(axes):
        raise InvalidInput(
            f"axis is {axis!r}; expected different axes of {name}, which has {ndim} dimensions"
        )
    return axes


def filter_axes(ndim: int) -> tuple[int, ...]:
    """Every axis but the first, as the filters of a layer lie; the only one of a vector."""
    return tuple(range(min(1, ndim - 1), ndim))


def checked_target(hoyer: Any) -> float:
    """The target as a float in [0, 1]."""
    target = as_number(hoyer, "hoyer", "a number in [0, 1]")
    if not 0.0 <= target <= 1.0:
        raise InvalidInput(f"hoyer is {target}; expected a number in [0, 1]")
    return target


def as_number(x: Any, name: str, expected: str) -> float:
    """A number of any kind as a float; a string is none, even where it spells one."""
    try:
        if not isinstance(x, str | bytes):
            return float(x)
    except (TypeError, ValueError):
        pass
    raise UnsupportedType(f"{name} is {x!r}; expected {expected}")


def arrange(array: NDArray[Any], axis: Axis, weights: Any, name: str = "vectors") -> Item:
    """Describe the vectors of ``array`` along ``axis`` as a block."""
    axes = normal_axes(axis, array.ndim, name)
    length = math.prod(array.shape[a] for a in axes)
    if array.size == 0:
        raise InvalidInput(f"{name} is empty (shape {array.shape}); expected at least one vector")
    order, grouping = _memory_order(array, axes)
    item = Item(array, axes, name, order)
    weight = None if weights is None else weights_of(weights, array, axes, name)
    if length == 1:
        return item
    values = _as_block(array, order, grouping[:2] if grouping[2] == 1 else grouping)
    item.weights = weight
    if weight is None:
        root = math.sqrt(length)
        beta = 1.0 / (root - 1.0)
        item.block = Block(values, None, beta, root * beta * (values.size // length), beta)
    else:
        shaped = np.ascontiguousarray(np.transpose(weight, order)).reshape(values.shape)
        item.block = _weighted_block(values, shaped)
    return item


def _memory_order(
    array: NDArray[Any], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """An order of the axes as (outer, vector, inner), and the sizes of these three.

    The inner axes are those that vary faster in memory than every vector axis; where a vector
    lies contiguous there are none.
    """
    shape, strides = array.shape, array.strides
    if axes == (array.ndim - 1,) and array.flags.c_contiguous:
        return tuple(range(array.ndim)), (array.size // (shape[-1] or 1), shape[-1], 1)
    by_stride = sorted(range(array.ndim), key=lambda a: -abs(strides[a]) if shape[a] > 1 else 1)
    vector = [a for a in by_stride if a in axes]
    others = [a for a in by_stride if a not in axes]
    slowest = max((abs(strides[a]) for a in vector if shape[a] > 1), default=0)
    outer = [a for a in others if shape[a] == 1 or abs(strides[a]) > slowest]
    inner = [a for a in others if a not in outer]
    sizes = tuple(math.prod(shape[a] for a in part) for part in (outer, vector, inner))
    return tuple(outer + vector + inner), (sizes[0], sizes[1], sizes[2])


def _as_block(array: NDArray[Any], order: tuple[int, ...], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array as (outer, length) or (outer, length, inner): a view, or else a copy."""
    dtype = np.dtype(np.float32 if array.dtype.itemsize == 2 else array.dtype.type)
    if array.dtype == dtype and (view := _reshaped(array, order, shape)) is not None:
        return view
    return np.ascontiguousarray(array.transpose(order), dtype=dtype).reshape(shape)


def _view_like(
    values: NDArray[Any], array: NDArray[Any], order: tuple[int, ...]
) -> NDArray[Any] | None:
    """``array`` in the shape of a block's values; None where that cannot be a view."""
    return _reshaped(array, order, values.shape) if array.dtype == values.dtype else None


def _reshaped(
    array: NDArray[Any], order: tuple[int, ...], shape: tuple[int, ...]
) -> NDArray[Any] | None:
    try:
        view = array.transpose(order).reshape(shape, copy=False)
    except ValueError:
        return None
    return view if view.strides[-1] == view.itemsize else None


def memory_view(
    shape: Sequence[int], strides: Sequence[int], itemsize: int, axes: tuple[int, ...]
) -> tuple[list[int], list[int]] | None:
    """Sizes and strides (bytes) of a block over memory that is not here; None: needs a copy."""
    nowhere = np.lib.stride_tricks.as_strided(np.empty(1, f"u{itemsize}"), shape, strides)
    order, grouping = _memory_order(nowhere, axes)
    view = _reshaped(nowhere, order, grouping[:2] if grouping[2] == 1 else grouping)
    return None if view is None else (list(view.shape), list(view.strides))


def weights_of(
    weights: Any, array: NDArray[Any], axes: tuple[int, ...], name: str
) -> NDArray[np.float64]:
    """The weights as float64 with one entry per entry of the array (broadcast, not copied)."""
    weight = real_array(weights, f"weights of {name}").astype(np.float64, copy=False)
    vector_shape = tuple(array.shape[a] for a in axes)
    if weight.shape != array.shape:
        if weight.shape != vector_shape and weight.shape != (math.prod(vector_shape),):
            raise InvalidInput(
                f"weights of {name} have shape {weight.shape}; expected {array.shape} (one per "
                f"entry) or {vector_shape} (one vector, used for all)"
            )
        in_order = np.argsort(axes)
        spread = [array.shape[a] if a in axes else 1 for a in range(array.ndim)]
        weight = weight.reshape(vector_shape).transpose(in_order).reshape(spread)
    bad = ~(np.isfinite(weight) & (weight >= 0.0))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InvalidInput(
            f"weights of {name} hold {weight[at]} at index {at}; expected finite numbers >= 0"
        )
    empty = ~(weight > 0.0).any(axis=axes)
    if empty.any():
        at = tuple(int(i) for i in np.argwhere(empty)[0])
        raise InvalidInput(
            f"weights of {name}, vector {at}, are all zero; expected at least one positive weight"
        )
    return np.broadcast_to(weight, array.shape)


def _weighted_block(values: NDArray[Any], weights: NDArray[np.float64]) -> Block:
    # A power of two brings extreme weights into range; it changes neither the measure nor a bit.
    largest = weights.max(axis=1, keepdims=True)
    if largest.max() > 1e100 or largest.min() < 1e-100:
        weights = np.ldexp(weights, -np.frexp(largest)[1])
    norm = np.sqrt((weights * weights).sum(axis=1))
    least = weights.min(axis=1)
    beta = 1.0 / (norm - least)
    return Block(values, weights, beta, float((norm * beta).sum()), beta)


def _plain(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(index)
