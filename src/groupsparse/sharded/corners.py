"""What is left of a vector where no entry exceeds its threshold, wherever that entry lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .network import MAX, Network
from .part import Corner, Part


def corner_weights(
    network: Network, parts: Sequence[Part], mus: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """For weighted parts: the largest |c| − t(w − min w), and the smallest weight that has it.

    Only the weights above the smallest are charged, so that a large t cannot drown the |c|. A zero
    vector has its corner at its smallest weight.
    """
    depths = [_depth(part, mu) for part, mu in zip(parts, mus, strict=True)]
    tops = [part.max(depth, -math.inf) for part, depth in zip(parts, depths, strict=True)]
    best = network.over_vectors(parts, tops, MAX)
    lightest = []
    for part, depth, top in zip(parts, depths, best, strict=True):
        weight = torch.where(_at_corner(part, depth, top), part.weight_of_all(), math.inf)
        lightest.append(-part.min(weight))
    return [
        (top, -weight)
        for top, weight in zip(best, network.over_vectors(parts, lightest, MAX), strict=True)
    ]


def corners(network: Network, parts: Sequence[Part], mus: Sequence[float]) -> list[Corner]:
    """The corner of every vector at these multipliers; of equally good entries the first."""
    weighted = [i for i, part in enumerate(parts) if part.weight is not None]
    found = corner_weights(network, [parts[i] for i in weighted], [mus[i] for i in weighted])
    known = dict(zip(weighted, found, strict=True))
    candidates = []
    for i, part in enumerate(parts):
        if i in known:
            best, weight = known[i]
            here = _at_corner(part, _depth(part, mus[i]), best)
            here &= part.weight_of_all() == part.spread(weight)
        else:
            here = part.magnitude() == part.spread(part.largest)
        candidates.append(-part.min(torch.where(here, part.places(), math.inf)))
    places = [-place for place in network.over_vectors(parts, candidates, MAX)]
    magnitudes = [part.largest for part in parts]
    some = [parts[i] for i in weighted]
    values = [
        part.max(torch.where(part.places() == part.spread(places[i]), part.magnitude(), 0.0))
        for i, part in zip(weighted, some, strict=True)
    ]
    for i, value in zip(weighted, network.over_vectors(some, values, MAX), strict=True):
        magnitudes[i] = value
    weights = [known[i][1] if i in known else torch.ones_like(p) for i, p in enumerate(places)]
    return [Corner(*each) for each in zip(places, weights, magnitudes, strict=True)]


def upper(network: Network, parts: Sequence[Part]) -> list[float]:
    """For each part a μ from which on none of its vectors changes any more."""
    weighted = [part for part in parts if part.weight is not None]
    keepers = [
        part.max(torch.where(_lightest(part), part.magnitude(), -math.inf), -math.inf)
        for part in weighted
    ]
    known = dict(zip(map(id, weighted), network.over_vectors(weighted, keepers, MAX), strict=True))
    ends = [_upper(part, known.get(id(part))) for part in parts]
    return [mu * (1.0 + 2.0**-50) for mu in network.largest(torch.stack(ends))]


def _upper(part: Part, keeper: Tensor | None) -> Tensor:
    if keeper is None:
        threshold = part.largest
    else:
        # Entries of weight 0 never leave, so there every other entry has to reach zero by itself.
        least, weight = part.least, part.weight_of_all()
        lead = part.magnitude() - part.spread(torch.where(least > 0.0, keeper, 0.0))
        above = weight - part.spread(least)
        cost = torch.where(above > 0.0, above, math.inf)
        overtaken = part.max(lead.clamp_(min=0.0) / cost)
        emptied = torch.where(least > 0.0, keeper / least, 0.0)
        threshold = torch.maximum(overtaken, emptied)
    ends = threshold / part.rate
    return ends.max().cpu() if ends.numel() else torch.zeros((), dtype=torch.float64)


def _lightest(part: Part) -> Tensor:
    found: Tensor = part.weight_of_all() == part.spread(part.least)
    return found


def _depth(part: Part, mu: float) -> Tensor:
    t = part.spread(part.threshold(mu))
    above = part.weight_of_all() - part.spread(part.least)
    depth: Tensor = part.magnitude() - t * above
    return depth


def _at_corner(part: Part, depth: Tensor, best: Tensor) -> Tensor:
    found: Tensor = (depth == part.spread(best)) | (part.spread(part.largest) == 0.0)
    return found
