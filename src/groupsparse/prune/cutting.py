"""Zero the entries with the smallest scores: exactly as many as asked for, always the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from .competing import Competition, Entrant, competitions_of
from .gpu import selecting, tables
from .masks import Masks
from .ordering import refuse_non_finite
from .packing import Bundle, PackedMask, tell_autograd
from .sharding import is_sharded, local, shards_of
from .targets import DEFAULT_TARGETS, Pattern, Target, select


class LayerCollapse(UserWarning):
    """A layer was left without a single entry that is not zero.

    Examples
    --------
    >>> import warnings
    >>> import torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    >>> _ = torch.nn.init.constant_(model[1].weight, 1e-9)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", prune.LayerCollapse)  # it is meant
    ...     print(prune.cut(model, sparsity=0.2))
    Masks(2 parameters, 16 of 80 entries zero)
    """


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
    competitions_of((), None, sparsity, scope, floor)  # what is asked for is checked before all
    masks = None if floor else _cut_at_once(found, scores, sparsity, scope)
    if masks is None:
        competitions = competitions_of(found, scores, sparsity, scope, floor)
        packed: dict[str, PackedMask] = {}
        for target, gone in _lowest(competitions):
            local(target.parameter).masked_fill_(gone, 0)
            packed[target.name] = PackedMask.pack(gone.logical_not_())
        masks = Masks(packed)
        warn_of_collapse(found)
    return masks


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
    yield from _lowest(competitions_of(found, scores, sparsity, scope, floor))


def warn_of_collapse(
    found: Sequence[Target], nonzero: Sequence[int] | None = None, stacklevel: int = 5
) -> None:
    """Warn of parameters all of whose entries are zero; count them where nobody has."""
    if nonzero is None:
        counts = [nonzero_count(target.parameter) for target in found]
        # One wait for the GPU.
        nonzero = torch.stack([count.to(counts[0].device) for count in counts]).tolist()
    dead = [target.name for target, count in zip(found, nonzero, strict=True) if count == 0]
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


def _lowest(competitions: Sequence[Competition]) -> Iterator[tuple[Target, Tensor]]:
    cutoffs = [competition.cutoff() for competition in competitions]
    for competition, cutoff in zip(competitions, cutoffs, strict=True):
        remaining = cutoff.ties
        for entrant in competition.entrants:
            gone, remaining = entrant.gone(cutoff, remaining)
            yield entrant.target, gone


def _cut_at_once(
    found: Sequence[Target], scores: Mapping[str, Tensor] | None, sparsity: float, scope: str
) -> Masks | None:
    """The cut by kernels that see all parameters together; None where they do not apply.

    As little as can be is done before the kernels are launched, and after they are done.
    """
    parameters = [target.parameter for target in found]
    if not tables.usable(parameters[0].device) or any(map(is_sharded, parameters)):
        return None
    given = None
    if scores is not None:
        given = [Entrant.of(target, scores, 0).compute() for target in found]
    entries = [parameter.numel() for parameter in parameters]
    groups = [len(found)] if scope == "model" else [1] * len(found)
    totals = [sum(entries)] if scope == "model" else entries
    wanted = [round(float(sparsity) * total) for total in totals]
    outcome = selecting.cut_(parameters, given, groups, wanted)
    if outcome is None:
        return None
    names, shapes = [target.name for target in found], [x.shape for x in parameters]
    masks = Masks.of_bundle(Bundle(names, shapes, outcome.bits))
    finite, nonzero = outcome.wait()
    if not finite:
        compared: Sequence[Tensor | None] = [None] * len(found) if given is None else given
        entrants = [Entrant(t, score, None) for t, score in zip(found, compared, strict=True)]
        refuse_non_finite([entrant.contested() for entrant in entrants])
    tell_autograd(parameters)
    if 0 in nonzero:
        warn_of_collapse(found, nonzero, stacklevel=6)
    return masks
