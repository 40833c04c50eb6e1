"""From multipliers to answers, as numbers per vector.

An answer is Σ factor·[|c| − t w]₊ over one threshold or, where the total jumps over the level
between two neighbouring floats lo < hi, over the two, plus an amount for each corner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .corners import corners
from .network import SUM, Network
from .part import Corner, Part, Sums
from .solve import Group, evaluate


@dataclass
class Side:
    """The answers of a part's vectors at one multiplier."""

    part: Part
    mu: float
    sums: Sums
    corner: Corner | None = None

    def __post_init__(self) -> None:
        self.live = self.sums.q > 0.0
        self.root = torch.where(self.live, self.sums.q, 1.0).sqrt()

    @property
    def term(self) -> Tensor:
        """wᵀx."""
        return torch.where(self.live, self.sums.s / self.root, self._weight)

    @property
    def length(self) -> Tensor:
        """|c|ᵀx, the length of the answer."""
        smooth = (self.sums.q + self.part.threshold(self.mu) * self.sums.s) / self.root
        return torch.where(self.live, smooth, self._magnitude)

    def value(self) -> Tensor:
        """xᵀ(|c| − t w), in the objective's unit."""
        part = self.part
        scale = part.beta / part.rate
        below = self._magnitude * scale - self.mu * part.beta * self._weight
        return torch.where(self.live, self.root * scale, below)

    @property
    def _weight(self) -> Tensor | float:
        return 1.0 if self.corner is None else self.corner.weight

    @property
    def _magnitude(self) -> Tensor | float:
        return 0.0 if self.corner is None else self.corner.magnitude


class Answer:
    """What is to be written of one part: factors of the excesses, and amounts for corners."""

    def __init__(self, side: Side, low: Side | None = None, cross: Tensor | None = None) -> None:
        self.side, self.low, self.part = side, low, side.part
        self.length = side.length
        self.factor = torch.where(side.live, self.length / side.root, 0.0)
        self.amount = torch.where(side.live, 0.0, self.length)
        self.place = None if side.corner is None else side.corner.place
        self.low_place = None if low is None or low.corner is None else low.corner.place
        if low is None or cross is None:
            return
        alive = self.part.largest > 0.0
        self.low_factor = torch.zeros_like(self.factor)
        self.low_amount = torch.zeros_like(self.factor)
        self.low_term = self.part.beta * low.term * alive
        self.high_term = self.part.beta * side.term * alive
        self.fall = self.low_term - self.high_term
        moves = self.fall > 1e-13 * (1.0 + self.low_term)
        self.ties, self.steps = moves & low.live, moves & ~low.live
        self.cosine = cross / (low.root * side.root)
        if side.corner is not None:
            t = self.part.threshold(low.mu)
            kept = (side.corner.magnitude - t * side.corner.weight).clamp_(min=0.0)
            self.cosine = torch.where(side.live, self.cosine, kept / low.root)

    def blended(self, share: float) -> Tensor:
        """The terms of the tied vectors that take this share of x[hi]."""
        both = (1.0 - share) * self.low_term + share * self.high_term
        return torch.where(self.ties, both / self._norm(share), 0.0).sum()

    def blend(self, share: float) -> None:
        """Let the tied vectors take this share of x[hi] and the rest of x[lo]."""
        assert self.low is not None
        low, high, norm = self.low, self.side, self._norm(share)
        length = ((1.0 - share) * low.length + share * high.length) / norm
        part_low, part_high = length * (1.0 - share) / norm, length * share / norm
        self.length = torch.where(self.ties, length, self.length)
        self.low_factor = torch.where(self.ties, part_low / low.root, 0.0)
        factor = torch.where(high.live, part_high / high.root, 0.0)
        self.factor = torch.where(self.ties, factor, self.factor)
        self.amount = torch.where(self.ties & ~high.live, part_high, self.amount)

    def _norm(self, share: float) -> Tensor:
        rest = 1.0 - share
        return (rest * rest + share * share + 2.0 * rest * share * self.cosine).sqrt()

    def climb(self, keys: Tensor, last: float, missing: float) -> None:
        """Corners before ``last`` go back to the entry they had, and it to between its two."""
        assert self.low is not None
        one, two = self.low.corner, self.side.corner
        if one is None or two is None:
            return
        budget = self.budget(missing)
        radius = torch.hypot(one.weight, two.weight)
        angle = torch.atan2(two.weight, one.weight) + (budget / radius).clamp(max=1.0).acos()
        # Before the direction of c itself the constraint would be slack and the value smaller.
        angle = angle.clamp(max=math.pi / 2).maximum(torch.atan2(two.magnitude, one.magnitude))
        between = self.steps & (keys == last)
        back = self.steps & (keys < last)
        cosine = torch.where(between, angle.cos(), torch.where(back, 1.0, 0.0))
        sine = torch.where(between, angle.sin(), torch.where(back, 0.0, 1.0))
        length = one.magnitude * cosine + two.magnitude * sine
        moved = between | back
        self.length = torch.where(moved, length, self.length)
        self.low_amount = torch.where(moved, length * cosine, 0.0)
        self.amount = torch.where(moved, length * sine, self.amount)

    def budget(self, missing: float) -> Tensor:
        """What wᵀx of the vector that ends between two corners is to be."""
        budget: Tensor = (self.high_term + missing) / self.part.beta
        return budget

    def put(self, here: Tensor, places: Sequence[int], x: Sequence[float], length: float) -> None:
        """Let one vector have these two entries, and this length."""
        assert self.place is not None
        assert self.low_place is not None
        self.low_place = torch.where(here, float(places[0]), self.low_place)
        self.place = torch.where(here, float(places[1]), self.place)
        self.low_amount = torch.where(here, length * x[0], self.low_amount)
        self.amount = torch.where(here, length * x[1], self.amount)
        self.length = torch.where(here, length, self.length)

    def pieces(self) -> tuple[list[float], list[Tensor], list[tuple[Tensor, Tensor]]]:
        """Multipliers, the factors of their excesses, and (place, amount) of corners."""
        sides = [(self.side.mu, self.factor, self.place, self.amount)]
        if self.low is not None:
            sides.append((self.low.mu, self.low_factor, self.low_place, self.low_amount))
        ends = [(place, amount) for _, _, place, amount in sides if place is not None]
        return [side[0] for side in sides], [side[1] for side in sides], ends

    def entries(self) -> Tensor:
        """The entries in this process, in float64."""
        return self.part.answer(*self.pieces())


def answers(network: Network, groups: Sequence[Group]) -> list[list[Answer]]:
    """The answers at the roots of groups with a positive multiplier, of every part of each."""
    smooth = [group for group in groups if group.root.jump is None]
    evaluate(network, smooth, [group.root.mu for group in smooth])
    jumping = [(g.root.jump, part) for g in groups if g.root.jump for part in g.parts]
    for group in groups:
        group.passes += 1
    found = network.over_vectors(
        [part for _, part in jumping], [part.both_sums(*jump) for jump, part in jumping], SUM
    )
    sums = {id(part): both for (_, part), both in zip(jumping, found, strict=True)}
    sides = [[_sides(group, part, sums.get(id(part))) for part in group.parts] for group in groups]
    _find_corners(network, [side for group in sides for some in group for side in some[:2] if side])
    return [[Answer(*some) for some in group] for group in sides]


def _sides(
    group: Group, part: Part, sums: Tensor | None
) -> tuple[Side, Side | None, Tensor | None]:
    if sums is None or group.root.jump is None:
        assert part.at is not None
        return Side(part, group.root.mu, part.at[1]), None, None
    lo, hi = group.root.jump
    return Side(part, hi, Sums(*sums[3:6])), Side(part, lo, Sums(*sums[:3])), sums[6]


def _find_corners(network: Network, sides: Sequence[Side]) -> None:
    """Where nothing is left above the threshold, find out which entry stays."""
    empty = [(~side.live).any().to(network.device) for side in sides]
    if not empty:
        return
    some = [s for s, is_empty in zip(sides, torch.stack(empty).tolist(), strict=True) if is_empty]
    found = corners(network, [side.part for side in some], [side.mu for side in some])
    for side, corner in zip(some, found, strict=True):
        side.corner = corner
