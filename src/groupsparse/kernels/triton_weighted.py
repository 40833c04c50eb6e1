"""The Triton kernel's passes over weighted vectors: one loop for every shape, all in float64.

With weights every vector has its own β, an entry that is left alone can change its place, and the
total can jump between such places. So there is one simple walk for all shapes here instead of tuned
ones, and float64 throughout: the two sides of a jump are neighbouring numbers.

Five numbers of every vector are kept from the first look on: its largest entry, the power of two
that brings its weights to about 1, β and the smallest weight for those, and, from every later pass,
the factor that makes its answer of what exceeds the threshold.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_sums import (
    ADDRESS,
    DTYPE,
    FLAW_BAD,
    INNER,
    ITEM,
    LENGTH,
    LIMIT,
    SLOT,
    STEP,
    STRIDE,
)
from .triton_tiles import finished_sums, load_values, power_of_two, propagating_max

# Columns of the table of weights: where they lie, as those of the tensor; LANE is from one of the
# vectors that lie interleaved to the next.
(W_ADDRESS, W_STRIDE, W_STEP, W_LANE, W_ITEM, W_DTYPE, WEIGHT_FIELDS) = (
    tl.constexpr(i) for i in range(7)
)
# What is kept of every vector.
(KEPT_TOP, KEPT_POWER, KEPT_BETA, KEPT_LEAST, KEPT_FACTOR, KEPT_FIELDS) = (
    tl.constexpr(i) for i in range(6)
)
FLAW_WEIGHTS = tl.constexpr(3.0)
HUGE, NOWHERE = tl.constexpr(1e300), tl.constexpr(1 << 30)


@triton.jit
def tile_of(table, weighed, u, end, R: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the vectors of a tile and their weights begin, which exist, and their slots."""
    r = tl.arange(0, R)
    inner = tl.load(table + INNER)
    if COLUMNS:
        blocks = (inner + R - 1) // R
        outer = u // blocks + r.to(tl.int64) * 0
        lane = (u % blocks) * R + r
        rows = lane < inner
    else:
        outer = u + r.to(tl.int64)
        lane = outer * 0
        rows = outer < end
    at = tl.load(table + ADDRESS) + (outer * tl.load(table + STRIDE) + lane) * tl.load(table + ITEM)
    place = outer * tl.load(weighed + W_STRIDE) + lane * tl.load(weighed + W_LANE)
    weights = tl.load(weighed + W_ADDRESS) + place * tl.load(weighed + W_ITEM)
    return at, weights, rows, tl.load(table + SLOT) + outer * inner + lane


@triton.jit
def load_pair(table, weighed, at, weights, k, rows, scale, power, C: tl.constexpr,
              DTYPES: tl.constexpr):
    """Magnitudes of the entries from ``k`` on, and their weights, in scale."""
    entry = k + tl.arange(0, C)
    mask = rows[:, None] & (entry < tl.load(table + LENGTH))[None, :]
    every = tl.zeros(mask.shape, tl.int64) + entry[None, :]
    along, beside = every * tl.load(table + STEP), every * tl.load(weighed + W_STEP)
    x = load_values(at[:, None], along, mask, tl.load(table + DTYPE), False, DTYPES, True)
    w = load_values(weights[:, None], beside, mask, tl.load(weighed + W_DTYPE), False, DTYPES, True)
    return tl.abs(x) * scale[:, None], w * power[:, None]


@triton.jit
def kept_of(kept, slots, rows):
    """The scale of each vector and back, that of its weights, β, and its smallest weight."""
    mine = kept + slots * KEPT_FIELDS
    top = tl.load(mine + KEPT_TOP, mask=rows, other=0.0)
    scale, back = power_of_two(top, True)
    power = tl.load(mine + KEPT_POWER, mask=rows, other=1.0)
    beta = tl.load(mine + KEPT_BETA, mask=rows, other=1.0)
    least = tl.load(mine + KEPT_LEAST, mask=rows, other=0.0)
    return top, scale, back, power, beta, least


@triton.jit
def first_look(table, weighed, first, end, kept, R: tl.constexpr, C: tl.constexpr,
               COLUMNS: tl.constexpr, DTYPES: tl.constexpr):
    """Everything about the vectors at μ = 0: their sums, their β, and what is wrong with them.

    Returns total, slope, the μ from which on nothing changes, flaws, and Σ β‖w‖₂.
    """
    length = tl.load(table + LENGTH).to(tl.int32)
    one = tl.full([R], 1.0, tl.float64)
    total, slope, upper, flaws, tops = one * 0.0, one * 0.0, one * 0.0, one * 0.0, one * 0.0
    for u in range(first, end, 1 if COLUMNS else R):
        at, weights, rows, slots = tile_of(table, weighed, u, end, R, COLUMNS)
        top_ = tl.zeros([R, C], tl.float64)
        most_ = tl.zeros([R, C], tl.float64)
        wrong_ = tl.zeros([R, C], tl.float64)
        for k in range(0, length, C):
            c, w = load_pair(table, weighed, at, weights, k, rows, one, one, C, DTYPES)
            top_ = propagating_max(top_, c)
            most_ = tl.maximum(most_, w)
            wrong_ += tl.where((w >= 0.0) & (w < float("inf")), 0.0, 1.0)
        top, most = tl.reduce(top_, 1, propagating_max), tl.max(most_, 1)
        scale, back = power_of_two(top, True)
        power, _ = power_of_two(most, True)
        s_ = tl.zeros([R, C], tl.float64)
        q_ = tl.zeros([R, C], tl.float64)
        n_ = tl.zeros([R, C], tl.float64)
        norm_ = tl.zeros([R, C], tl.float64)
        least_ = tl.full([R, C], float("inf"), tl.float64)
        keeper_ = tl.zeros([R, C], tl.float64)  # the largest entry that has the smallest weight
        for k in range(0, length, C):
            c, w = load_pair(table, weighed, at, weights, k, rows, scale, power, C, DTYPES)
            mask = rows[:, None] & (k + tl.arange(0, C) < length)[None, :]
            s_ += c * w
            q_ += c * c
            n_ += tl.where(c > 0.0, w * w, 0.0)
            norm_ += w * w
            keeper_ = tl.where(mask & (w < least_), c, keeper_)
            keeper_ = tl.where(mask & (w == least_), tl.maximum(keeper_, c), keeper_)
            least_ = tl.where(mask, tl.minimum(least_, w), least_)
        least = tl.min(least_, 1)
        keeper = tl.max(tl.where(least_ == least[:, None], keeper_, 0.0), 1)
        norm = tl.sqrt(tl.sum(norm_, 1))
        wrong = (tl.sum(wrong_, 1) > 0.0) | (most == 0.0)
        gap = tl.where(rows & ~wrong, norm - least, 1.0)
        beta = 1.0 / gap
        # From here on every other entry has fallen behind, and the last one below its threshold.
        ahead = tl.where(least > 0.0, keeper, 0.0)
        far_ = tl.zeros([R, C], tl.float64)
        for k in range(0, length, C):
            c, w = load_pair(table, weighed, at, weights, k, rows, scale, power, C, DTYPES)
            mask = rows[:, None] & (k + tl.arange(0, C) < length)[None, :]
            dearer = mask & (w > least[:, None])
            cost = tl.where(dearer, w - least[:, None], 1.0)
            lead = tl.maximum(c - ahead[:, None], 0.0)
            far_ = tl.maximum(far_, tl.where(dearer, lead / cost, 0.0))
        far = tl.maximum(tl.max(far_, 1), ahead / tl.where(least > 0.0, least, 1.0))
        q = tl.sum(q_, 1)
        term, steeper, _ = finished_sums(tl.sum(s_, 1), q, tl.sum(n_, 1), one * 0.0, True)
        term = tl.where(q > 0.0, term, least)
        mine = kept + slots * KEPT_FIELDS
        tl.store(mine + KEPT_TOP, top, mask=rows)
        tl.store(mine + KEPT_POWER, power, mask=rows)
        tl.store(mine + KEPT_BETA, beta, mask=rows)
        tl.store(mine + KEPT_LEAST, least, mask=rows)
        tl.store(mine + KEPT_FACTOR, one, mask=rows)
        total += tl.where(rows, beta * term, 0.0)
        slope += tl.where(rows, beta * beta * steeper * scale, 0.0)
        upper = tl.maximum(upper, tl.where(rows, far * back * gap, 0.0))
        tops += tl.where(rows, beta * norm, 0.0)
        flaws = tl.maximum(flaws, tl.where(rows & ~(top < float("inf")), FLAW_BAD, 0.0))
        flaws = tl.maximum(flaws, tl.where(rows & wrong, FLAW_WEIGHTS, 0.0))
    return tl.sum(total, 0), tl.sum(slope, 0), tl.max(upper, 0), tl.max(flaws, 0), tl.sum(tops, 0)


@triton.jit
def sums_at(table, weighed, at, weights, rows, scale, power, t, C: tl.constexpr,
            DTYPES: tl.constexpr):
    """The three sums of the vectors of a tile, and the largest excess, all in their scale."""
    R: tl.constexpr = rows.shape[0]
    length = tl.load(table + LENGTH).to(tl.int32)
    s = tl.zeros([R, C], tl.float64)
    q = tl.zeros([R, C], tl.float64)
    n = tl.zeros([R, C], tl.float64)
    most = tl.zeros([R, C], tl.float64)
    for k in range(0, length, C):
        c, w = load_pair(table, weighed, at, weights, k, rows, scale, power, C, DTYPES)
        d = tl.maximum(c - t[:, None] * w, 0.0)
        s += d * w
        q += d * d
        n += tl.where(d > 0.0, w * w, 0.0)
        most = tl.maximum(most, d)
    return tl.sum(s, 1), tl.sum(q, 1), tl.sum(n, 1), tl.max(most, 1)


@triton.jit
def corner_at(table, weighed, at, weights, rows, scale, power, t, least, C: tl.constexpr,
              DTYPES: tl.constexpr):
    """The entry that is left of a vector when none exceeds its threshold: place, weight, size.

    It is the first of those with the smallest weight among the largest |c| − t w. Only what a
    weight has above the smallest is charged, so that a large t cannot drown the |c|.
    """
    R: tl.constexpr = rows.shape[0]
    length = tl.load(table + LENGTH).to(tl.int32)
    depth_ = tl.full([R, C], float("-inf"), tl.float64)
    weight_ = tl.full([R, C], float("inf"), tl.float64)
    size_ = tl.zeros([R, C], tl.float64)
    place_ = tl.full([R, C], NOWHERE, tl.int32)
    for k in range(0, length, C):
        c, w = load_pair(table, weighed, at, weights, k, rows, scale, power, C, DTYPES)
        entry = k + tl.arange(0, C)
        mask = rows[:, None] & (entry < length)[None, :]
        depth = c - t[:, None] * (w - least[:, None])
        better = mask & ((depth > depth_) | ((depth == depth_) & (w < weight_)))
        depth_ = tl.where(better, depth, depth_)
        weight_ = tl.where(better, w, weight_)
        size_ = tl.where(better, c, size_)
        place_ = tl.where(better, entry[None, :] + place_ * 0, place_)
    best = depth_ == tl.max(depth_, 1)[:, None]
    weight = tl.min(tl.where(best, weight_, float("inf")), 1)
    best = best & (weight_ == weight[:, None])
    place = tl.min(tl.where(best, place_, NOWHERE), 1)
    size = tl.sum(tl.where(place_ == place[:, None], size_, 0.0), 1)
    exists = rows & (place < NOWHERE)
    return place, tl.where(exists, weight, 0.0), tl.where(exists, size, 0.0)


@triton.jit
def weighted_sums(table, weighed, first, end, mu, kept, R: tl.constexpr, C: tl.constexpr,
                  COLUMNS: tl.constexpr, DTYPES: tl.constexpr):
    """Total, slope and the largest entry of the answer, in units of the type's largest number."""
    limit = tl.load(table + LIMIT).to(tl.float64, bitcast=True)
    total = tl.zeros([R], tl.float64)
    slope = tl.zeros([R], tl.float64)
    longest = tl.zeros([R], tl.float64)
    for u in range(first, end, 1 if COLUMNS else R):
        at, weights, rows, slots = tile_of(table, weighed, u, end, R, COLUMNS)
        top, scale, back, power, beta, least = kept_of(kept, slots, rows)
        t = tl.minimum(mu * beta * scale, HUGE)
        s, q, n, most = sums_at(table, weighed, at, weights, rows, scale, power, t, C, DTYPES)
        term, steeper, factor = finished_sums(s, q, n, t, True)
        corner = rows & (q == 0.0)
        if tl.sum(tl.where(corner, 1, 0), 0) > 0:
            place, weight, size = corner_at(
                table, weighed, at, weights, corner, scale, power, t, least, C, DTYPES)
            term = tl.where(corner, weight, term)
        tl.store(kept + slots * KEPT_FIELDS + KEPT_FACTOR, factor, mask=rows)
        total += tl.where(rows, beta * term, 0.0)
        slope += tl.where(rows & (q > 0.0), beta * beta * steeper * scale, 0.0)
        longest = tl.maximum(longest, tl.where(rows, most * factor * back * limit, 0.0))
    return tl.sum(total, 0), tl.sum(slope, 0), tl.max(longest, 0)
