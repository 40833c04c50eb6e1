"""Where a total jumps over its level: what to choose, agreed upon by all processes.

:mod:`groupsparse.ties` explains what has to be done. Here the vectors that jump lie anywhere, so
that what has to be found (the common share of tied vectors, and the one vector that ends between
two corners) is searched with a few numbers per collective, for all groups side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..result import Status
from ..ties import _between_corners as between_corners
from .answer import Answer
from .network import Network
from .solve import Group

POINTS = 63  # that are tried in one collective
SHORT = 2048  # entries of a vector that may be shown to everybody
ROUNDS = 9  # 64**-9 is the distance of floats near 1


def resolve(
    network: Network, groups: Sequence[Group], found: Sequence[list[Answer]]
) -> list[Status]:
    """Choose within the jumps, so that the targets are met; returns how each group ended."""
    states = [Status.CONVERGED if group.root.met else Status.STALLED for group in groups]
    at = [i for i, group in enumerate(groups) if group.root.jump is not None]
    if not at:
        return states
    rows = [_added(network, found[i], _room) for i in at]
    numbers = network.total(torch.cat(rows))
    shares: dict[int, float] = {}
    goals: dict[int, float] = {}
    left: dict[int, float] = {}
    for j, i in enumerate(at):
        total, room, high, steps = numbers[4 * j : 4 * j + 4]
        missing = groups[i].level - total
        if room > 0.0:
            states[i], shares[i] = Status.TIE, 0.0
            if missing < room:
                goals[i] = missing + high
        if missing - room > 0.0 and steps > 0.0:
            states[i], left[i] = Status.CORNER, missing - room
    shares.update(_common_shares(network, {i: found[i] for i in goals}, goals))
    for i, share in shares.items():
        for answer in found[i]:
            answer.blend(share)
    _fill_corners(network, {i: found[i] for i in left}, left)
    return states


def _added(
    network: Network, answers: Sequence[Answer], numbers: Callable[[Answer], Tensor]
) -> Tensor:
    """Numbers summed over the parts of one group, with replicas counted once."""
    each = [numbers(answer).to(network.device) * float(answer.part.counts) for answer in answers]
    return torch.stack(each).sum(0)


def _room(answer: Answer) -> Tensor:
    """The total at hi, how much ties can add to it, their terms at hi, what corners can add."""
    low, ties, steps = answer.fall, answer.ties, answer.steps
    total = (answer.side.term * answer.part.beta).sum()
    parts = [(low * ties).sum(), (answer.high_term * ties).sum(), (low * steps).sum()]
    return torch.stack([total, *parts])


def _common_shares(
    network: Network, found: dict[int, list[Answer]], goals: dict[int, float]
) -> dict[int, float]:
    """The share of x[hi] for which the terms of the tied vectors add up to the goal."""
    sides = dict.fromkeys(found, (0.0, 1.0))
    for _ in range(ROUNDS if found else 0):
        points = {
            i: [a + (b - a) * k / (POINTS + 1) for k in range(1, POINTS + 1)]
            for i, (a, b) in sides.items()
        }
        rows = [_added(network, found[i], partial(_blended, points[i])) for i in found]
        numbers = iter(network.total(torch.cat(rows)))
        for i, (a, b) in sides.items():
            values = [next(numbers) for _ in range(POINTS)]
            # The terms fall as the share grows.
            over = next((k for k, v in enumerate(values) if v <= goals[i]), POINTS)
            ends = [a, *points[i], b]
            sides[i] = ends[over], ends[over + 1]
    return {i: b for i, (_, b) in sides.items()}


def _blended(shares: Sequence[float], answer: Answer) -> Tensor:
    return torch.stack([answer.blended(share) for share in shares])


def _fill_corners(network: Network, found: dict[int, list[Answer]], left: dict[int, float]) -> None:
    """Give what is left to corners, one vector after the other; one ends between its two."""
    keys: dict[int, list[Tensor]] = {}
    sides: dict[int, tuple[int, int]] = {}
    spent = dict.fromkeys(found, 0.0)
    for i, answers in found.items():
        before, keys[i] = 0, []
        for answer in answers:
            keys[i].append(answer.part.keys() + float(before))
            before += answer.part.vectors
        # The vectors up to the first number cost no more than is left, those up to the other do,
        # unless all of them can be afforded.
        sides[i] = -1, before
    while points := {i: _between(a, b) for i, (a, b) in sides.items() if b - a > 1}:
        rows = [
            torch.stack([_cost(network, found[i], keys[i], last) for last in points[i]])
            for i in points
        ]
        numbers = iter(network.total(torch.cat(rows)))
        for i in points:
            a, b = sides[i]
            values = [(next(numbers), point) for point in points[i]]
            affordable = [(cost, point) for cost, point in values if cost <= left[i]]
            dear = [point for cost, point in values if cost > left[i]]
            if affordable:
                spent[i], a = affordable[-1]
            sides[i] = a, dear[0] if dear else b
    torn = []
    for i, (_, last) in sides.items():
        missing = left[i] - spent[i]
        for answer, key in zip(found[i], keys[i], strict=True):
            answer.climb(key, float(last), missing)
            if 0 <= last < answer.part.vectors and answer.part.length <= SHORT:
                torn.append((answer, last, missing))
            last -= answer.part.vectors
    _improve(network, torn)


def _improve(network: Network, torn: Sequence[tuple[Answer, int, float]]) -> None:
    """The best two entries for vectors between two corners, where their two are not the best.

    All pairs have to be tried. These vectors, at most one per group and short ones only, are the
    only entries that ever cross the network.
    """
    rows = []
    for answer, last, missing in torn:
        part = answer.part
        here = part.keys() == float(last)
        known = [answer.budget(missing), answer.place, answer.length]
        facts = torch.stack([torch.where(here, x, 0.0).sum() for x in known if x is not None])
        both = part.vector(float(last)).flatten() * float(part.first_copy)
        rows.append(torch.cat([facts * float(part.counts), both]).to(network.device))
    if not rows:
        return
    numbers = np.array(network.total(torch.cat(rows)))
    for answer, last, _ in torn:
        n = answer.part.length
        (budget, at, length), numbers = numbers[:3], numbers[3:]
        (c, w), numbers = numbers[: 2 * n].reshape(2, n), numbers[2 * n :]
        corner = np.zeros(n)
        corner[int(at)] = 1.0
        x = between_corners(c, w, corner, float(budget))
        entries = [int(i) for i in np.flatnonzero(x)]
        if len(entries) == 2 and c @ x > length:
            answer.put(
                answer.part.keys() == float(last),
                entries,
                [float(x[i]) for i in entries],
                float(c @ x),
            )


def _between(a: int, b: int) -> list[int]:
    """Some whole numbers strictly between two."""
    return sorted({a + (b - a) * k // (POINTS + 1) for k in range(1, POINTS + 1)} - {a, b})


def _cost(network: Network, answers: Sequence[Answer], keys: Sequence[Tensor], last: int) -> Tensor:
    costs = [
        (x.fall * (x.steps & (key <= last))).sum().to(network.device) * float(x.part.counts)
        for x, key in zip(answers, keys, strict=True)
    ]
    return torch.stack(costs).sum()
