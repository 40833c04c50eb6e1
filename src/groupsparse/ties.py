"""Where the total jumps over the level, choose within the jump: the target is met exactly.

Between two neighbouring floats lo < hi the total falls from above the level to below it, for one of
two reasons:

* *ties*: equally large entries (or equal ratios |c|/w) leave together. At the jump every unit
  vector on them is optimal for the Lagrangian, so each tied vector may take any blend of its two
  one-sided answers x[lo] and x[hi]; all take the same blend, so that their order does not matter.
* *corners* (weighted only): a 1-sparse answer moves to an entry of smaller weight. In between no
  point is optimal for the Lagrangian, so only one vector leaves its corner, with two entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kernels.reference import corner_of
from .layout import Block
from .result import Status

Array = NDArray[np.float64]
CHUNK = 1 << 20  # entries treated at once, so that a matrix of ones needs little extra memory


@dataclass(slots=True)
class _Sides:
    """Some vectors of one block with their answers on both sides of the jump."""

    block: Block
    index: tuple[NDArray[np.intp], ...]
    magnitude: Array
    weight: Array
    low: Array
    high: Array
    empty: NDArray[np.bool_]  # 1-sparse on the low side already: a corner, not a tie
    low_term: Array
    high_term: Array
    scale: Array  # what the objective of each vector is worth where vectors were rescaled

    def write(self, rows: NDArray[np.bool_] | slice, x: Array) -> None:
        """Write z = (|c|ᵀx) sign(c)∘x for the chosen vectors."""
        out = self.block.out
        assert out is not None
        at = tuple(i[rows] for i in self.index)
        where = (at[0],) if len(at) == 1 else (at[0], slice(None), at[1])
        length = (self.magnitude[rows] * x).sum(axis=1, keepdims=True)
        with np.errstate(over="ignore"):  # the range is checked before anything is handed out
            out[where] = np.copysign(length * x, self.block.values[where]) + 0.0


def resolve(
    blocks: Sequence[Block], lo: float, hi: float, level: float, total_at_hi: float
) -> tuple[Status, float]:
    """Rewrite the vectors that jump, after all of them were written at ``hi``.

    Returns how it ended and how much the objective Σ xᵢᵀ|cᵢ| grew over the answer at ``hi``.
    """
    missing = level - total_at_hi
    gain = 0.0
    room = sum(_tie_room(sides) for sides in jumping(blocks, lo, hi))
    if room > 0.0:
        share = _common_blend(blocks, lo, hi, min(missing, room)) if missing < room else 0.0
        for sides in jumping(blocks, lo, hi):
            ties = ~sides.empty
            x = _blend(sides.low[ties], sides.high[ties], share)
            sides.write(ties, x)
            change = (sides.magnitude[ties] * (x - sides.high[ties])).sum(axis=1)
            gain += float((change * sides.scale[ties]).sum())
        missing -= room
    corners = missing > 0.0 and any(sides.empty.any() for sides in jumping(blocks, lo, hi))
    if corners:
        return Status.CORNER, gain + _fill_corners(blocks, lo, hi, missing)
    # Where no vector jumps, rounding alone kept the total from meeting the level more closely.
    return Status.TIE if room > 0.0 else Status.CONVERGED, gain


def jumping(blocks: Sequence[Block], lo: float, hi: float) -> Iterator[_Sides]:
    """The vectors whose term differs between lo and hi by more than rounding, in chunks."""
    for block in blocks:
        step = max(1, CHUNK // block.length)
        for first in range(0, block.vectors, step):
            flat = np.arange(first, min(first + step, block.vectors))
            sides = _sides(block, np.unravel_index(flat, block.grid), lo, hi)
            moves = sides.low_term - sides.high_term > 1e-13 * (1.0 + sides.low_term)
            if moves.any():
                yield _select(sides, moves)


def _sides(block: Block, index: tuple[NDArray[np.intp], ...], lo: float, hi: float) -> _Sides:
    where = (index[0],) if len(index) == 1 else (index[0], slice(None), index[1])
    magnitude = np.abs(block.values[where], dtype=np.float64)
    if block.weights is None:
        weight = np.ones((1, block.length))
    else:
        weight = np.broadcast_to(block.weights, block.values.shape)[where]
    rate = np.broadcast_to(block.rate, block.grid)[index]
    beta = np.broadcast_to(block.beta, block.grid)[index]
    below, above = (
        np.broadcast_to(block.threshold(mu), block.grid)[index][:, None] for mu in (lo, hi)
    )
    low, empty = _answer(magnitude, weight, below)
    high, _ = _answer(magnitude, weight, above)
    low_term = beta * (low * weight).sum(axis=1)
    high_term = beta * (high * weight).sum(axis=1)
    alive = magnitude.any(axis=1)
    return _Sides(
        block,
        index,
        magnitude,
        weight,
        low,
        high,
        empty,
        low_term * alive,
        high_term * alive,
        beta / rate,
    )


def _select(sides: _Sides, rows: NDArray[np.bool_]) -> _Sides:
    weight = sides.weight if len(sides.weight) == 1 else sides.weight[rows]
    return _Sides(
        sides.block,
        tuple(i[rows] for i in sides.index),
        sides.magnitude[rows],
        np.broadcast_to(weight, (int(rows.sum()), sides.block.length)),
        sides.low[rows],
        sides.high[rows],
        sides.empty[rows],
        sides.low_term[rows],
        sides.high_term[rows],
        sides.scale[rows],
    )


def _answer(magnitude: Array, weight: Array, t: Array) -> tuple[Array, NDArray[np.bool_]]:
    """x at the threshold, and which vectors have nothing left above it."""
    excess = np.maximum(magnitude - t * weight, 0.0)
    norm = np.sqrt((excess * excess).sum(axis=1, keepdims=True))
    empty = norm[:, 0] == 0.0
    x = excess / np.where(norm > 0.0, norm, 1.0)
    if empty.any():
        cost = np.broadcast_to(weight, magnitude.shape)[empty]
        x[np.flatnonzero(empty), corner_of(magnitude[empty], cost, t[empty, 0])] = 1.0
    return x, empty


def _tie_room(sides: _Sides) -> float:
    return float((sides.low_term - sides.high_term)[~sides.empty].sum())


def _blend(low: Array, high: Array, share: float) -> Array:
    """The unit vector between x[hi] (share 1) and x[lo] (share 0)."""
    x = (1.0 - share) * low + share * high
    norm: Array = np.sqrt((x * x).sum(axis=1, keepdims=True))
    return x / norm


def _common_blend(blocks: Sequence[Block], lo: float, hi: float, missing: float) -> float:
    """The share for which the tied vectors together get ``missing`` above their answer at hi."""
    terms = [
        (
            sides.low_term[ties],
            sides.high_term[ties],
            (sides.low[ties] * sides.high[ties]).sum(axis=1),
        )
        for sides in jumping(blocks, lo, hi)
        for ties in [~sides.empty]
    ]
    low, high, cosine = (np.concatenate(part) for part in zip(*terms, strict=True))
    goal = missing + float(high.sum())

    def above(share: float) -> float:
        rest = 1.0 - share
        norm = np.sqrt(rest * rest + share * share + 2.0 * rest * share * cosine)
        return float(((rest * low + share * high) / norm).sum()) - goal

    from scipy.optimize import brentq

    if above(0.0) <= 0.0:
        return 0.0
    if above(1.0) >= 0.0:
        return 1.0
    return float(brentq(above, 0.0, 1.0, xtol=1e-16, rtol=4 * np.finfo(float).eps))


def _fill_corners(blocks: Sequence[Block], lo: float, hi: float, missing: float) -> float:
    """Give ``missing`` to corners, one vector after the other; at most one ends between two."""
    gain = 0.0
    for sides in jumping(blocks, lo, hi):
        beta = np.broadcast_to(sides.block.beta, sides.block.grid)[sides.index]
        for i in np.flatnonzero(sides.empty):
            row = np.zeros(len(sides.empty), dtype=bool)
            row[i] = True
            step = float(sides.low_term[i] - sides.high_term[i])
            before = float(sides.magnitude[i] @ sides.high[i])
            if step <= missing:
                x = sides.low[i]
            else:
                budget = (float(sides.high_term[i]) + missing) / float(beta[i])
                x = _between_corners(sides.magnitude[i], sides.weight[i], sides.high[i], budget)
            sides.write(row, x[None])
            gain += (float(sides.magnitude[i] @ x) - before) * float(sides.scale[i])
            missing -= step
            if missing <= 0.0:
                return gain
    return gain


def _between_corners(c: Array, w: Array, corner: Array, budget: float) -> Array:
    """The best unit vector with at most two entries and wᵀx ≤ budget.

    All pairs are tried, up to a few thousand entries; beyond that those with the corner's entry.
    """
    ends = np.flatnonzero(w <= budget)
    others = np.flatnonzero(c > 0.0)
    if ends.size * others.size > 1 << 22:
        ends = np.flatnonzero(corner)
    best, best_value = corner, float(c @ corner)
    for k in ends:
        # x = (cos φ at j, sin φ at k): w_j cos φ + w_k sin φ = R cos(φ − δ) is at most the budget
        # from φ = δ + arccos(budget/R) on, up to the corner at φ = π/2.
        radius = np.hypot(w[others], w[k])
        reach = np.arctan2(w[k], w[others]) + np.arccos(np.minimum(budget / radius, 1.0))
        # Before the direction of c itself the constraint would be slack and the value smaller.
        angle = np.where(radius > budget, reach, 0.0)
        angle = np.clip(angle, np.arctan2(c[k], c[others]), math.pi / 2)
        value = np.where(others == k, 0.0, c[others] * np.cos(angle) + c[k] * np.sin(angle))
        if value.max(initial=0.0) > best_value:
            j = int(value.argmax())
            best_value = float(value[j])
            best = np.zeros_like(c)
            best[others[j]], best[k] = math.cos(angle[j]), math.sin(angle[j])
    return best
