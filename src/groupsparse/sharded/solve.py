"""All groups side by side: one Newton step of every group costs the same few collectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..dual import Point, Root, Search
from ..errors import InvalidInput, NonFiniteInput
from ..group import SLACK, TOLERANCE
from ..layout import _plain
from .corners import corner_weights, upper
from .network import MAX, SUM, Network
from .part import LARGEST_WEIGHT, SMALLEST_WEIGHT, Part, Sums, shift

# Squares of magnitudes beyond these powers of two could leave the range of float64.
EXPONENTS = 300


class Group:
    """Vectors that share one target and one multiplier."""

    def __init__(self, parts: Sequence[Part], target: float, start: float | None) -> None:
        self.parts = [part for part in parts if part.length > 1]
        self.alone = [part for part in parts if part.length == 1]  # these have no Hoyer measure
        self.target, self.start = target, start
        if not self.parts:
            raise InvalidInput(
                f"{parts[0].name} holds only vectors of length 1, which have no Hoyer measure; "
                "expected a vector of length 2 or more"
            )
        self.count = sum(part.vectors for part in self.parts)
        self.unit = 1.0  # the multiplier's, where the vectors had to be rescaled
        self.exponents = math.inf, -math.inf  # the smallest and the largest of the vectors' tops
        self.level = math.nan
        self.passes = 0
        self.root = Root(0.0, 0, met=True)

    def search(self, tol: float | None, known: Sequence[Point]) -> Search:
        """The search for its multiplier, from what is known already."""
        tolerance = TOLERANCE if tol is None else tol
        sizes = [part.local.dtype.itemsize for part in (*self.parts, *self.alone)]
        slack = max(tolerance, *(SLACK[size] for size in sizes))
        kind = Search if self.target < 1.0 else _Sparsest
        start = None if self.start is None else self.start / self.unit
        levels = self.level, tolerance * self.count
        return kind(*levels, known=known, start=start, slack=slack * self.count)


class _Sparsest(Search):
    """For the target 1: unchanged where every vector is 1-sparse already, or else the far end."""

    def propose(self, upper: Callable[[], float]) -> float | None:
        if self.last is None:  # not before there was a guess
            return 0.0
        enough = self.last.total <= self.level + self.slack
        self.root = Root(0.0 if enough else upper(), 0, met=True)
        return None


def solve(network: Network, groups: Sequence[Group], tol: float | None) -> None:
    """Find the multipliers of all groups; nothing is written."""
    begin(network, groups)
    ends: list[float] = []

    def far(i: int) -> float:
        if not ends:
            parts = [part for group in groups for part in group.parts]
            of_part = dict(zip(map(id, parts), upper(network, parts), strict=True))
            ends.extend(max(of_part[id(part)] for part in group.parts) for group in groups)
        return ends[i]

    fresh = [group for group in groups if group.start is None]
    at_zero = totals(network, fresh, [0.0] * len(fresh)) if fresh else []
    known = {id(group): [Point(0.0, *pair)] for group, pair in zip(fresh, at_zero, strict=True)}
    searches = {i: group.search(tol, known.get(id(group), [])) for i, group in enumerate(groups)}
    while searches:
        asked: dict[int, float] = {}
        for i, search in list(searches.items()):
            mu = search.propose(lambda i=i: far(i))  # type: ignore[misc]
            if mu is None:
                groups[i].root = searches.pop(i).root
            else:
                asked[i] = mu
        if asked:
            found = totals(network, [groups[i] for i in asked], list(asked.values()))
            for (i, mu), (total, slope) in zip(asked.items(), found, strict=True):
                searches[i].add(Point(mu, total, slope))


def begin(network: Network, groups: Sequence[Group]) -> None:
    """Look at all entries once; raise in every process if some of them cannot be used."""
    parts = [part for group in groups for part in group.parts]
    alone = [part for group in groups for part in group.alone]
    everything = [*parts, *alone]
    tops = [part.tops() for part in parts]
    finite = [x.isfinite().all().to(network.device) for x in (*tops, *(p.local for p in alone))]
    bad = [
        math.inf if fine else part.first_bad()
        for part, fine in zip(everything, torch.stack(finite).tolist(), strict=True)
    ]
    extremes = [_extremes(part, top) for part, top in zip(parts, tops, strict=True)]
    for part, extreme in zip(parts, network.over_vectors(parts, extremes, MAX), strict=True):
        part.largest = extreme[0]
        if part.weight is not None:
            _scale_weights(part, extreme[1], -extreme[2])
    ranges = [
        x.to(network.device) for group in groups for part in group.parts for x in _range(part)
    ]
    flags = [-x for x in bad] + [float(part.bad_weight()) for part in parts]
    values = torch.tensor(flags, dtype=torch.float64, device=network.device)
    found = network.largest(torch.cat([values, torch.stack(ranges)]))
    _refuse(network, everything, parts, found)
    ranged = iter(found[len(flags) :])
    for group in groups:
        group.passes += 1
        for _ in group.parts:
            least, most, _ = -next(ranged), next(ranged), next(ranged)
            group.exponents = min(group.exponents[0], least), max(group.exponents[1], most)
    _weigh(network, groups, parts)
    for group in groups:
        smallest, largest = group.exponents
        if largest > EXPONENTS or smallest < -EXPONENTS:
            middle = int(largest + smallest) // 2
            group.unit = math.ldexp(1.0, middle)
            for part in group.parts:
                part.rescale(middle)


def _extremes(part: Part, top: Tensor) -> Tensor:
    """Per vector the largest magnitude and, with weights, the largest and minus the smallest."""
    if part.weight is None:
        return top.unsqueeze(0)
    weight = part.weight_of_all()
    return torch.stack([top, part.max(weight, -math.inf), part.max(-weight, -math.inf)])


def _scale_weights(part: Part, largest: Tensor, least: Tensor) -> None:
    """A power of two brings extreme weights into range; it changes neither measure nor bits."""
    part.least = least
    extreme = (largest > LARGEST_WEIGHT) | (largest < SMALLEST_WEIGHT)
    if bool((extreme & (largest > 0.0)).any()):
        by = torch.where(extreme & largest.isfinite(), -torch.frexp(largest)[1], 0)
        part.weight = shift(part.weight_of_all(), part.spread(by))
        part.least = shift(least, by)
    part.weightless = not bool((largest > 0.0).all())


def _range(part: Part) -> list[Tensor]:
    """Minus the smallest exponent, the largest, and whether a vector has no positive weight."""
    exponent = torch.frexp(part.largest)[1].to(torch.float64)
    some = part.largest > 0.0
    ends = [torch.where(some, e, -math.inf).flatten() for e in (-exponent, exponent)]
    nothing = exponent.new_full((1,), -math.inf)
    least, most = (torch.cat([end, nothing]).amax() for end in ends)
    return [least, most, exponent.new_tensor(float(part.weightless))]


def _refuse(
    network: Network, everything: Sequence[Part], parts: Sequence[Part], found: Sequence[float]
) -> None:
    bad, rest = found[: len(everything)], found[len(everything) :]
    for part, negative, empty in zip(parts, rest, rest[len(parts) + 2 :: 3], strict=False):
        if negative:
            raise InvalidInput(
                f"weights of {part.name} hold a number that is negative or not finite; "
                "expected finite numbers >= 0"
            )
        if empty:
            raise InvalidInput(
                f"weights of {part.name}: those of a vector are all zero; "
                "expected at least one positive weight"
            )
    for part, place in zip(everything, bad, strict=True):
        if place > -math.inf:
            raise NonFiniteInput(_message(network, part, int(-place)))


def _message(network: Network, part: Part, flat: int) -> str:
    entry, names = part.entry(flat), ["nan", "inf", "-inf"]
    kind = -1.0 if entry is None else float(names.index(str(float(entry))))
    found = names[int(network.largest(torch.tensor([kind]))[0])]
    at: list[int] = []
    for size in reversed(part.shape):
        flat, place = divmod(flat, size)
        at.insert(0, place)
    if part.fold is not None:
        return f"{part.name}: entry {tuple(at)} is {found}; expected finite numbers"
    where = f"index {_plain(tuple(at[a] for a in part.axes))}"
    vector = tuple(i for a, i in enumerate(at) if a not in part.axes)
    if vector:
        where = f"vector {_plain(vector)}, {where}"
    return f"{part.name}: {where} is {found}; expected finite numbers"


def _weigh(network: Network, groups: Sequence[Group], parts: Sequence[Part]) -> None:
    """β of weighted vectors, and the level that each group's total has to reach."""
    weighted = [part for part in parts if part.weight is not None]
    squares = [part.sum(part.weight_of_all().square()) for part in weighted]
    for part, square in zip(weighted, network.over_vectors(weighted, squares, SUM), strict=True):
        norm = square.sqrt()
        part.beta = part.rate = 1.0 / (norm - part.least)
        part.top = float((norm * part.beta).sum()) if part.counts else 0.0
    if weighted:
        tops = torch.tensor([part.top for part in weighted], dtype=torch.float64)
        for part, top in zip(weighted, network.total(tops), strict=True):
            part.top = top
    for group in groups:
        group.level = sum(part.top for part in group.parts) - group.count * group.target


def totals(
    network: Network, groups: Sequence[Group], mus: Sequence[float]
) -> list[tuple[float, float]]:
    """The total and its slope of every group, each at its own multiplier."""
    evaluate(network, groups, mus)
    parts = [part for group in groups for part in group.parts]
    at = [mu for group, mu in zip(groups, mus, strict=True) for _ in group.parts]
    emptied = [
        i
        for i, (part, mu) in enumerate(zip(parts, at, strict=True))
        if part.weight is not None and mu > 0.0 and not bool(_sums(part).q.all())
    ]
    some = corner_weights(network, [parts[i] for i in emptied], [at[i] for i in emptied])
    weights = {i: weight for i, (_, weight) in zip(emptied, some, strict=True)}
    shares = iter(_share(part, weights.get(i, part.least)) for i, part in enumerate(parts))
    summed = [
        torch.stack([next(shares).to(network.device) for _ in group.parts]).sum(0)
        for group in groups
    ]
    found = network.total(torch.cat(summed))
    return list(zip(found[::2], found[1::2], strict=True))


def evaluate(network: Network, groups: Sequence[Group], mus: Sequence[float]) -> None:
    """Bring the sums of all parts of these groups to these multipliers."""
    todo = []
    for group, mu in zip(groups, mus, strict=True):
        if group.parts[0].at is None or group.parts[0].at[0] != mu:
            group.passes += 1
            todo += [(part, mu) for part in group.parts]
    parts = [part for part, _ in todo]
    found = network.over_vectors(parts, [part.sums(mu) for part, mu in todo], SUM)
    for (part, mu), sums in zip(todo, found, strict=True):
        part.at = (mu, Sums(*sums))


def _sums(part: Part) -> Sums:
    assert part.at is not None
    return part.at[1]


def _share(part: Part, corner: Tensor | float) -> Tensor:
    """What this process's vectors add to the total and to its slope."""
    s, q, n = _sums(part)
    if not part.counts:
        return q.new_zeros(2)
    live = q > 0.0
    inverse = 1.0 / torch.where(live, q, 1.0).sqrt()
    term = torch.where(live, s * inverse, corner)
    slope = torch.where(live, (term * term - n) * inverse, 0.0)
    return torch.stack([(term * part.beta).sum(), (slope * part.beta * part.rate).sum()])
