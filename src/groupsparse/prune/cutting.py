"""Zero the entries with the smallest scores: exactly as many as asked for, always the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import InvalidInput
from .masks import Masks
from .ordering import Cutoff, Scores, common_dtype, first_true, kth_smallest
from .packing import PackedMask
from .sharding import local, shards_of
from .targets import DEFAULT_TARGETS, Pattern, Target, select
from .vectors import as_rows, like_parameter, splits_vectors, vector_length, vector_view

SCOPES = ("model", "layer")


class LayerCollapse(UserWarning):
    """A layer was left without a single entry that is not zero."""


def cut(
    model: nn.Module,
    sparsity: float,
    *,
    scope: str = "model",
    targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
    ignore: Iterable[Pattern] | Pattern = (),
    floor: int = 0,
    scores: Mapping[str, Tensor] | None = None,
) -> Masks:
    """Set the smallest entries of a model to zero and remember where they are.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place; a model or a single layer.
    sparsity : float
        Fraction of the targeted entries to set to zero: exactly ``round(sparsity * n)`` of them.
    scope : {"model", "layer"}
        Whether all targeted entries compete with each other, or those of each layer.
    targets, ignore : tuple of str or module classes
        Which parameters; see `select`.
    floor : int
        Number of entries that every filter keeps at least.
    scores : mapping of names to tensors, optional
        What to compare, the absolute values of the entries if not given.

    Returns
    -------
    Masks
        Where the zeros are. Of equal scores the first ones are cut, in the order of the model's
        parameters and, within one, row by row.

    Warns
    -----
    LayerCollapse
        If a layer, named in the message, is left without a nonzero entry.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> layer = torch.nn.Linear(4, 1)
    >>> with torch.no_grad():
    ...     _ = layer.weight.copy_(torch.tensor([[0.5, -2.0, 1.0, -0.1]]))
    >>> masks = prune.cut(layer, sparsity=0.5)
    >>> layer.weight.tolist(), masks.zeros
    ([[0.0, -2.0, 1.0, 0.0]], 2)
    """
    return cut_by(select(model, targets, ignore), scores, sparsity, scope=scope, floor=floor)


@torch.no_grad()
def cut_by(
    found: Sequence[Target],
    scores: Mapping[str, Tensor] | None,
    sparsity: float,
    *,
    scope: str = "model",
    floor: int = 0,
) -> Masks:
    """`cut` for parameters that were selected before."""
    packed: dict[str, PackedMask] = {}
    for target, gone in lowest(found, scores, sparsity, scope=scope, floor=floor):
        local(target.parameter).masked_fill_(gone, 0)
        packed[target.name] = PackedMask.pack(gone.logical_not_())
    warn_of_collapse(found)
    return Masks(packed)


@torch.no_grad()
def lowest(
    found: Sequence[Target],
    scores: Mapping[str, Tensor] | None,
    sparsity: float,
    *,
    scope: str = "model",
    floor: int = 0,
) -> Iterator[tuple[Target, Tensor]]:
    """Where the lowest scores are, one parameter after the other; every error comes first."""
    sparsity = checked_sparsity(sparsity)
    if scope not in SCOPES:
        raise InvalidInput(f"scope is {scope!r}; expected one of {SCOPES}")
    if floor < 0:
        raise InvalidInput(f"floor is {floor}; expected a number of entries >= 0")
    entrants = [_Entrant.of(target, scores, floor) for target in found]
    competitions = [entrants] if scope == "model" else [[entrant] for entrant in entrants]
    cutoffs = [_cutoff(competition, sparsity) for competition in competitions]
    for competition, cutoff in zip(competitions, cutoffs, strict=True):
        remaining = cutoff.ties
        for entrant in competition:
            gone, remaining = entrant.gone(cutoff, remaining)
            yield entrant.target, gone


def warn_of_collapse(found: Sequence[Target], stacklevel: int = 5) -> None:
    """Warn of parameters all of whose entries are zero."""
    counts = [nonzero_count(target.parameter) for target in found]
    together = torch.stack([count.to(counts[0].device) for count in counts])  # one wait for the GPU
    dead = [t.name for t, count in zip(found, together.tolist(), strict=True) if count == 0]
    if dead:
        warnings.warn(
            f"nothing is left of {', '.join(dead)}: all entries are zero, and so is all that "
            "passes through; use a lower sparsity, scope='layer' or floor=1",
            LayerCollapse,
            stacklevel=stacklevel,
        )


def nonzero_count(parameter: Tensor) -> Tensor:
    """How many entries of a parameter are not zero, in all processes together."""
    count = local(parameter).count_nonzero()
    shards = shards_of(parameter)
    return count if shards is None else shards(count)


def checked_sparsity(sparsity: float) -> float:
    """The fraction of zeros as a float in [0, 1]."""
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float):
        raise TypeError(f"sparsity is {sparsity!r}; expected a number in [0, 1]")
    if not 0.0 <= sparsity <= 1.0:
        raise InvalidInput(f"sparsity is {sparsity}; expected a fraction of zeros in [0, 1]")
    return float(sparsity)


@dataclass(frozen=True)
class _Entrant:
    """A parameter in the competition: its scores, and which of its entries are safe."""

    target: Target
    scores: Tensor | None
    safe: Tensor | None

    @classmethod
    def of(cls, target: Target, scores: Mapping[str, Tensor] | None, floor: int) -> _Entrant:
        own = None
        if scores is not None:
            own, expected = scores.get(target.name), local(target.parameter).shape
            if own is None or own.shape != expected:
                raise InvalidInput(
                    f"scores have no tensor of shape {tuple(expected)} for {target.name}"
                )
            own = own.to(target.parameter.device)
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
        rows = as_rows(self.compute().reshape(view.shape), axes)
        best = rows.argsort(dim=1, stable=True)[:, length - floor :]
        safe = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, best, True)
        return like_parameter(safe, view, axes, local(self.target.parameter).shape)

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


def _cutoff(competition: Sequence[_Entrant], sparsity: float) -> Cutoff:
    """Where to cut parameters that compete with each other."""
    entries = sum(entrant.target.parameter.numel() for entrant in competition)
    k = round(sparsity * entries)
    contested = sum(entrant.contested_count() for entrant in competition)
    if k > contested:
        first = competition[0].target.name
        names = first if len(competition) == 1 else f"{len(competition)} parameters"
        raise InvalidInput(
            f"{k} of {entries} entries of {names} should go, but the floor keeps "
            f"{entries - contested}; lower the sparsity or the floor"
        )
    dtype = common_dtype([entrant.dtype for entrant in competition])
    return kth_smallest([entrant.contested() for entrant in competition], k, dtype)
