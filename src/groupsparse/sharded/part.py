"""One tensor as far as it lies in this process: its magnitudes, and sums over its vectors.

A vector may go on in other processes. What is computed here per vector are parts of sums and
maxima, which :class:`.network.Network` completes; numbers per vector have the shape of the local
tensor with 1 in place of the axes along which the vectors lie, so that they broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..layout import BIG
from .network import Network
from .pieces import Piece, take

LARGEST_WEIGHT, SMALLEST_WEIGHT = 1e100, 1e-100


class Sums(NamedTuple):
    """Σ w·d, Σ d² and Σ w² (of the entries where d > 0) of every vector, for d = [|c| − t w]₊."""

    s: Tensor
    q: Tensor
    n: Tensor


class Corner(NamedTuple):
    """The entry that is left of a vector when nothing exceeds the threshold."""

    place: Tensor  # in the whole vector
    weight: Tensor
    magnitude: Tensor


class Part:
    """One tensor as far as it lies in this process.

    ``fold`` makes every stretch of that many entries along the first axis, which must be among
    ``axes``, one vector, as grouped transposed convolutions store them. ``price`` scales the
    magnitudes for the time of the computation.
    """

    def __init__(
        self,
        piece: Piece,
        axes: tuple[int, ...],
        name: str,
        weights: Any,
        network: Network,
        *,
        price: float = 1.0,
        fold: int | None = None,
    ) -> None:
        self.piece, self.axes, self.name, self.price = piece, axes, name, price
        self.local, self.shape = piece.local, piece.shape
        self.device = self.local.device
        self.fold = fold
        self.along = tuple(axis for axis in axes if fold is None or axis)
        self.length = math.prod(self.shape[axis] for axis in axes)
        others = [n for axis, n in enumerate(self.shape) if axis not in axes]
        self.vectors = math.prod(others)
        if fold is not None:
            self.label = (piece.whole(0) // fold).to(self.device)
            self.length = self.length // self.shape[0] * fold
            self.vectors *= self.shape[0] // fold
        self.grid = tuple(1 if a in axes else n for a, n in enumerate(self.local.shape))
        if fold is not None:
            self.grid = (self.shape[0] // fold, *self.grid[1:])
        split = [dim for axis in axes for dim in piece.cuts[axis]]
        self.splits = network.splits(piece.mesh, sorted(split)) if split else set()
        self.counts = network.counts(piece.mesh, [*split, *piece.replicated])
        self.first_copy = network.counts(piece.mesh, piece.replicated)
        root = math.sqrt(self.length)
        self.beta: Any = 1.0 / (root - 1.0) if self.length > 1 else math.nan
        self.rate: Any = self.beta
        self.top = root * self.beta * self.vectors
        self.weight = None if weights is None else self._weight(weights)
        self.weightless = False  # whether the weights of some vector are all zero
        self.largest = torch.empty(0)
        self.least: Any = 1.0
        self.exponent: Tensor | None = None
        self.at: tuple[float, Sums] | None = None

    def _weight(self, weights: Any) -> Tensor:
        """The weights of the local entries, broadcastable against them."""
        from .pieces import is_dtensor, piece_of

        given = torch.as_tensor(weights)
        if is_dtensor(given):
            part = piece_of(given, f"weights of {self.name}")
            if part.placements != self.piece.placements or part.shape != self.shape:
                raise InvalidInput(
                    f"weights of {self.name} are placed as {part.placements} with shape "
                    f"{part.shape}; expected those of the tensor, or a tensor that is not sharded"
                )
            return part.local.to(torch.float64)
        if given.shape == self.shape:
            mine = take(given.detach(), self.piece)
        else:
            mine = self._weight_of_one_vector(given.detach())
        return mine.to(device=self.device, dtype=torch.float64)

    def _weight_of_one_vector(self, given: Tensor) -> Tensor:
        sizes = [self.fold if self.fold and not a else self.shape[a] for a in self.axes]
        if tuple(given.shape) not in (tuple(sizes), (self.length,)):
            raise InvalidInput(
                f"weights of {self.name} have shape {tuple(given.shape)}; expected "
                f"{tuple(self.shape)} (one per entry) or {tuple(sizes)} (one vector, used for all)"
            )
        order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        shape = [1] * len(self.shape)
        for axis, size in zip(self.axes, sizes, strict=True):
            shape[axis] = size
        spread = given.reshape(sizes).permute(order).reshape(shape)
        if self.fold:
            spread = spread.index_select(0, (self.piece.whole(0) % self.fold).to(given.device))
            return take(spread, self.piece, self.along)
        return take(spread, self.piece, self.axes)

    def weight_of_all(self) -> Tensor:
        """The weights in the shape of the local tensor."""
        assert self.weight is not None
        return self.weight.expand(self.local.shape)

    def bad_weight(self) -> bool:
        """Whether a weight in this process is negative or not finite."""
        w = self.weight
        return w is not None and not bool((w.isfinite() & (w >= 0.0)).all())

    # Sums and maxima over the vectors

    def sum(self, x: Tensor) -> Tensor:
        """The sums over this process's parts of the vectors."""
        y = x.sum(self.along, keepdim=True) if self.along else x
        if self.fold is None:
            return y.expand(self.grid)
        # A product with zeros and ones, since adding at indices has no fixed order on GPUs.
        ones = self.label == torch.arange(self.grid[0], device=self.device).unsqueeze(1)
        wide = y.expand(-1, *self.grid[1:]).to(torch.float64)
        found: Tensor = torch.tensordot(ones.to(torch.float64), wide, 1)
        return found

    def max(self, x: Tensor, nothing: float = 0.0) -> Tensor:
        """The maxima over this process's parts of the vectors; ``nothing`` where it has none."""
        if x.numel() == 0:
            return x.new_full(self.grid, nothing)
        y = x.amax(self.along, keepdim=True) if self.along else x
        if self.fold is None:
            return y.expand(self.grid)
        found = y.new_full(self.grid, nothing)
        return found.index_reduce_(0, self.label, y.expand(-1, *self.grid[1:]), "amax")

    def min(self, x: Tensor) -> Tensor:
        """The minima, infinite where this process has no part of a vector."""
        return -self.max(-x, -math.inf)

    def spread(self, x: Any) -> Any:
        """A number per vector, made to broadcast against the local entries."""
        if self.fold is None or not isinstance(x, Tensor) or x.ndim == 0:
            return x
        return x.index_select(0, self.label)

    # What the projection needs

    def tops(self) -> Tensor:
        """The largest magnitudes of the vectors; not finite where an entry is not."""
        return self.max(self.local.abs()).to(torch.float64) * self.price

    def first_bad(self) -> float:
        """Where in the whole tensor the first entry lies that is not finite; else infinity."""
        bad = (~self.local.isfinite()).nonzero()
        if len(bad) == 0:
            return math.inf
        flat = 0
        for dim, at in enumerate(bad[0].tolist()):
            flat = flat * self.shape[dim] + int(self.piece.whole(dim)[at])
        return float(flat)

    def entry(self, flat: int) -> Tensor | None:
        """The entry at that place of the whole tensor, if it is here."""
        at = []
        for dim in reversed(range(len(self.shape))):
            flat, place = divmod(flat, self.shape[dim])
            found = (self.piece.whole(dim) == place).nonzero()
            if len(found) == 0:
                return None
            at.append(int(found[0]))
        return self.local[tuple(reversed(at))]

    def magnitude(self) -> Tensor:
        """|c| in float64, scaled to about 1 where that was needed."""
        wide = self.local.to(torch.float64)
        m = wide.abs() if wide.dtype == self.local.dtype else wide.abs_()
        if self.price != 1.0:
            m.mul_(self.price)
        return m if self.exponent is None else shift(m, -self.spread(self.exponent))

    def threshold(self, mu: float) -> Any:
        """t = μ·rate of every vector, finite."""
        if isinstance(self.rate, float):
            return min(mu * self.rate, BIG)
        return (mu * self.rate).clamp(max=BIG)

    def excess(self, magnitude: Tensor, mu: float) -> Tensor:
        """[|c| − t w]₊."""
        t = self.spread(self.threshold(mu))
        d: Tensor = magnitude - (t if self.weight is None else t * self.weight)
        return d.clamp_(min=0.0)

    def sums(self, mu: float) -> Tensor:
        """This process's share of the three sums."""
        return torch.stack(self._sums(self.excess(self.magnitude(), mu)))

    def _sums(self, d: Tensor) -> list[Tensor]:
        w = self.weight
        above = d > 0.0
        if w is None:
            return [self.sum(d), self.sum(d * d), self.sum(above).to(torch.float64)]
        return [self.sum(d * w), self.sum(d * d), self.sum(w * w * above)]

    def both_sums(self, low: float, high: float) -> Tensor:
        """This process's share of the sums at two multipliers, and of the product between them."""
        m = self.magnitude()
        one, two = self.excess(m, low), self.excess(m, high)
        return torch.stack([*self._sums(one), *self._sums(two), self.sum(one * two)])

    def places(self) -> Tensor:
        """Where in its whole vector every local entry lies."""
        return self._flat(self.axes)

    def keys(self) -> Tensor:
        """Which vector of the whole tensor every local vector is."""
        if self.fold is None:
            return self._flat([a for a in range(len(self.shape)) if a not in self.axes])
        shape = (self.shape[0] // self.fold, *self.grid[1:])
        others = [a for a in range(1, len(self.shape)) if a not in self.axes]
        first = torch.arange(shape[0], dtype=torch.float64, device=self.device)
        first = first * math.prod(self.shape[a] for a in others)
        return self._flat(others) + first.reshape(-1, *[1] * (len(shape) - 1))

    def _flat(self, axes: Sequence[int]) -> Tensor:
        flat = torch.zeros([1] * len(self.shape), dtype=torch.float64, device=self.device)
        for axis in axes:
            at, size = self.piece.whole(axis), self.shape[axis]
            if self.fold is not None and axis == 0:
                at, size = at % self.fold, self.fold
            shape = [1] * len(self.shape)
            shape[axis] = -1
            flat = flat * size + at.to(flat).reshape(shape)
        return flat

    def vector(self, key: float) -> Tensor:
        """Magnitudes and weights of one vector, as far as it lies here; zeros elsewhere."""
        both = torch.zeros(2, self.length, dtype=torch.float64, device=self.device)
        mine = (self.spread(self.keys()) == key).expand(self.local.shape)
        places = self.places().expand(self.local.shape)[mine].long()
        both[0, places] = self.magnitude()[mine]
        both[1, places] = self.weight_of_all()[mine]
        return both

    def rescale(self, middle: int) -> None:
        """Scale every vector to about 1 by a power of two; its threshold rate goes along."""
        exponent = torch.frexp(self.largest)[1].to(torch.int64)
        self.exponent = torch.where(self.largest > 0.0, exponent, middle)
        self.largest = shift(self.largest, -self.exponent)
        rate = torch.as_tensor(self.beta, dtype=torch.float64, device=self.device)
        by = (middle - self.exponent).clamp(-1020, 1020)
        self.rate = shift(rate.expand(self.grid), by)

    def write(self, mus: Sequence[float], factors: Sequence[Tensor], corners: Any) -> None:
        """z = sign(c) ∘ (Σ factor·[|c| − t w]₊ + what corners get)."""
        self.local.copy_(self.answer(mus, factors, corners))

    def answer(self, mus: Sequence[float], factors: Sequence[Tensor], corners: Any) -> Tensor:
        """The entries that `write` writes, in float64."""
        m = self.magnitude()
        z = torch.zeros_like(m)
        for mu, factor in zip(mus, factors, strict=True):
            z += self.excess(m, mu).mul_(self.spread(factor))
        for place, amount in corners:
            z += torch.where(self.places() == self.spread(place), self.spread(amount), 0.0)
        if self.exponent is not None:
            z = shift(z, self.spread(self.exponent))
        if self.price != 1.0:
            z /= self.price
        return z.copysign_(self.local).add_(0.0)  # adding 0 turns -0.0 into 0.0


def shift(x: Tensor, exponent: Tensor) -> Tensor:
    """x · 2**exponent, exactly, in two steps since one factor could overflow."""
    half = exponent // 2
    return x * _power(half) * _power(exponent - half)


def _power(exponent: Tensor) -> Tensor:
    """2**exponent from its bits; ``ldexp`` goes through an inexact power on some devices."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
