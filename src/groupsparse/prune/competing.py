"""Who competes in a cut, by which scores, and how many of them go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real

import torch
from torch import Tensor

from ..errors import InvalidInput
from .ordering import (
    Cutoff,
    Scores,
    common_dtype,
    first_true,
    kth_smallest,
    refuse_non_finite,
)
from .sharding import local, shards_of
from .targets import Target
from .vectors import as_rows, like_parameter, splits_vectors, vector_length, vector_view

SCOPES = ("model", "layer")


def checked_sparsity(sparsity: float, name: str = "sparsity") -> float:
    """The fraction of zeros as a float in [0, 1]."""
    if isinstance(sparsity, bool) or not isinstance(sparsity, Real):
        raise TypeError(f"{name} is {sparsity!r}; expected a number in [0, 1]")
    if not 0.0 <= sparsity <= 1.0:
        raise InvalidInput(f"{name} is {sparsity}; expected a fraction of zeros in [0, 1]")
    return float(sparsity)


@dataclass(frozen=True)
class Entrant:
    """A parameter in the competition: its scores, and which of its entries are safe."""

    target: Target
    scores: Tensor | None
    safe: Tensor | None

    @classmethod
    def of(cls, target: Target, scores: Mapping[str, Tensor] | None, floor: int) -> Entrant:
        own = None
        if scores is not None:
            own, expected = scores.get(target.name), local(target.parameter).shape
            if not isinstance(own, Tensor) or own.shape != expected or own.is_complex():
                raise InvalidInput(
                    f"scores have no real tensor of shape {tuple(expected)} for {target.name}"
                )
            # Whole numbers are exact in float64, up to 2⁵³, and in float32 up to 2²⁴ only.
            own = (own if own.is_floating_point() else own.double()).to(target.parameter.device)
        entrant = cls(target, own, None)
        return entrant if floor == 0 else replace(entrant, safe=entrant.best(floor))

    def compute(self) -> Tensor:
        """The scores: the absolute values of the entries where no others were given."""
        return local(self.target.parameter).abs() if self.scores is None else self.scores

    @property
    def dtype(self) -> torch.dtype:
        return self.target.parameter.dtype if self.scores is None else self.scores.dtype

    def best(self, floor: int) -> Tensor:
        """The ``floor`` entries of each filter with the highest scores; of equal ones, the last."""
        view, axes = vector_view(self.target, "filter")
        length = vector_length(view, axes)
        if splits_vectors(self.target, axes):
            raise InvalidInput(f"floor: filters of {self.target.name} are split over processes")
        if floor > length:
            raise InvalidInput(
                f"floor is {floor}; the filters of {self.target.name} have {length} entries"
            )
        self._refuse_non_finite()  # a NaN would be among the best, and never be looked at again
        rows = as_rows(self.compute().reshape(view.shape), axes)
        best = rows.argsort(dim=1, stable=True)[:, length - floor :]
        safe = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, best, True)
        return like_parameter(safe, view, axes, local(self.target.parameter).shape)

    def _refuse_non_finite(self) -> None:
        bad = self.compute().isfinite().logical_not_().count_nonzero()
        shards = shards_of(self.target.parameter)
        if int(bad if shards is None else shards(bad)) > 0:
            refuse_non_finite([Scores(self.target.name, self.compute)])

    def contested(self) -> Scores:
        """The scores of the entries that may go."""
        safe = self.safe
        compute = self.compute if safe is None else lambda: self.compute()[~safe]
        return Scores(self.target.name, compute, shards_of(self.target.parameter))

    def contested_count(self) -> int:
        """How many entries may go, in all processes together."""
        if self.safe is None:
            return self.target.parameter.numel()
        kept = self.safe.count_nonzero()
        shards = shards_of(self.target.parameter)
        return self.target.parameter.numel() - int(kept if shards is None else shards(kept))

    def gone(self, cutoff: Cutoff, remaining: int) -> tuple[Tensor, int]:
        """Which entries go, and how many ties are left for the parameters after this one."""
        scores = self.compute().to(cutoff.dtype)
        gone = scores < cutoff.value
        if self.safe is not None:
            gone &= ~self.safe
        if remaining > 0:
            ties = scores == cutoff.value
            if self.safe is not None:
                ties &= ~self.safe
            count = int(ties.count_nonzero())
            shards = shards_of(self.target.parameter)
            before, total = (0, count) if shards is None else shards.earlier(count)
            allowed = min(max(remaining - before, 0), count)
            gone |= ties if allowed == count else first_true(ties, allowed)
            remaining = max(remaining - total, 0)
        return gone, remaining


@dataclass(frozen=True)
class Competition:
    """Parameters whose entries compete with each other, and how many of those go."""

    entrants: Sequence[Entrant]
    zeros: int

    @classmethod
    def of(cls, entrants: Sequence[Entrant], sparsity: float) -> Competition:
        entries = sum(entrant.target.parameter.numel() for entrant in entrants)
        zeros = round(sparsity * entries)
        contested = sum(entrant.contested_count() for entrant in entrants)
        if zeros > contested:
            first = entrants[0].target.name
            names = first if len(entrants) == 1 else f"{len(entrants)} parameters"
            raise InvalidInput(
                f"{zeros} of {entries} entries of {names} should go, but the floor keeps "
                f"{entries - contested}; lower the sparsity or the floor"
            )
        return cls(entrants, zeros)

    def cutoff(self) -> Cutoff:
        """Where to cut."""
        dtype = common_dtype([entrant.dtype for entrant in self.entrants])
        return kth_smallest([entrant.contested() for entrant in self.entrants], self.zeros, dtype)


def competitions_of(
    found: Sequence[Target],
    scores: Mapping[str, Tensor] | None,
    sparsity: float,
    scope: str,
    floor: int,
) -> list[Competition]:
    """Who competes with whom for how many places; everything but the scores is checked."""
    sparsity = checked_sparsity(sparsity)
    if scope not in SCOPES:
        raise InvalidInput(f"scope is {scope!r}; expected one of {SCOPES}")
    if isinstance(floor, bool) or not isinstance(floor, Integral) or floor < 0:
        raise InvalidInput(f"floor is {floor!r}; expected a whole number of entries >= 0")
    entrants = [Entrant.of(target, scores, floor) for target in found]
    parts = [entrants] if scope == "model" else [[entrant] for entrant in entrants]
    return [Competition.of(part, sparsity) for part in parts]
