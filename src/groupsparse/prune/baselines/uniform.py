"""Random pruning: the floor that every method has to stand above."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ..cutting import cut_by
from ..masks import Masks
from ..sharding import local
from ..targets import DEFAULT_TARGETS, Pattern, select


def random(
    model: nn.Module,
    sparsity: float,
    *,
    seed: int = 0,
    scope: str = "model",
    floor: int = 0,
    targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
    ignore: Iterable[Pattern] | Pattern = (),
) -> Masks:
    """Zero entries that are drawn at random, each with the same chance.

    Parameters
    ----------
    model, sparsity, scope, floor, targets, ignore
        As in `cut`.
    seed : int
        The same seed draws the same entries, on every device.

    Returns
    -------
    Masks
        Where the zeros are.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> prune.baselines.random(torch.nn.Linear(10, 10), 0.9, seed=1).zeros
    90
    """
    found = select(model, targets, ignore)
    generator = torch.Generator("cpu").manual_seed(seed)
    # Drawn in float64: in float32 a million draws hold ties, and ties go to the first entries.
    scores = {
        target.name: torch.rand(
            local(target.parameter).shape, generator=generator, dtype=torch.float64, device="cpu"
        )
        for target in found
    }
    return cut_by(found, scores, sparsity, scope=scope, floor=floor)
