"""The Triton kernel's last pass: write the answer of one segment, and measure what was written."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_sums import (
    ADDRESS,
    DTYPE,
    ITEM,
    LENGTH,
    OUT,
    STEP,
    STRIDE,
    blended_length,
    count_ties,
    tile_place,
    whole,
)
from .triton_tiles import (
    BEYOND_TWO,
    folded,
    finished_sums,
    inverse_root,
    load_values,
    power_of_two,
    propagating_max,
    split_threshold,
    store_values,
)

# What a segment reports: Σ β‖z‖₁/‖z‖₂, Σ‖z‖₂ and the dual value without its multiplier's part.
# Parts of split vectors report ‖z‖₁, ‖z‖₂² and the unrounded ‖z‖₂² in units of their scale.
TERMS, PRIMAL, DUAL, VALUE_FIELDS = (tl.constexpr(i) for i in range(4))


@triton.jit
def _corner_values(m, low_mu, high_mu, alpha, beta, top):
    """The two values of a vector that is left with its m largest entries: the first's, the rest's.

    z = (|c|ᵀx) x for the unit vector x that is α of the first entry and 1 − α of all m.
    """
    wide = top.to(tl.float64)
    jumps = (low_mu * beta < wide) & (wide <= high_mu * beta)
    alpha = tl.where(jumps, alpha, 1.0)
    m = tl.maximum(m.to(tl.float64), 1.0)
    rest = (1.0 - alpha) / tl.sqrt(m)
    norm = tl.sqrt((rest + alpha) * (rest + alpha) + (m - 1.0) * rest * rest)
    size = wide * blended_length(m, alpha)
    return size * (rest + alpha) / norm, size * rest / norm


@triton.jit
def segment_write(table, first, end, mu, keep, low_mu, high_mu, alpha, tops, factors, result,
                  R: tl.constexpr, C: tl.constexpr, SINGLE: tl.constexpr, COLUMNS: tl.constexpr,
                  ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr,
                  IN_PLACE: tl.constexpr):
    """Write a segment of whole vectors; with ``keep`` they stay what they are."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    FOLD: tl.constexpr = 4 if ALIGNED else 1
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype = tl.load(table + DTYPE)
    step = tl.load(table + STEP)
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    terms, primal, dual = mu * 0.0, mu * 0.0, mu * 0.0
    cols = tl.arange(0, C)
    for u in range(first, end, 1 if COLUMNS else R):
        address, offsets, rows, slots = tile_place(u, first, end, table, False, R, COLUMNS, ALIGNED)
        out, _, _, _ = tile_place(u, first, end, table, True, R, COLUMNS, ALIGNED)
        if SINGLE:
            along = cols * step if COLUMNS else cols
            mask = rows[:, None] & (cols < length)[None, :]
            at = offsets[:, None] + along[None, :]
            x = load_values(address, at, mask, dtype, ALIGNED, DTYPES, WIDE)
            c = tl.abs(x)
            top = tl.reduce(c, 1, propagating_max)
            scale, back = power_of_two(top, WIDE)
            high, low = split_threshold(mu * beta * scale.to(tl.float64), BEYOND_TWO, WIDE)
            d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
            _, _, factor = finished_sums(tl.sum(d, 1), tl.sum(d * d, 1), top, high, WIDE)
            z = d * factor[:, None]
            corner = rows & (factor == 0.0) & (keep == 0)
            if tl.sum(tl.where(corner, 1, 0), 0) > 0:
                # Corners: the largest entries alone.
                tied = (c >= (top * (1.0 - 4.44e-16 if WIDE else 1.0))[:, None]) & mask
                m = tl.sum(tl.where(tied, 1.0, 0.0), 1)
                entry = cols[None, :] + tl.zeros([R, C], tl.int32)
                where = tl.min(tl.where(tied, entry, 1 << 30), 1)
                main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top)
                wide_scale = scale.to(tl.float64)
                one = tl.where(entry == where[:, None], (main * wide_scale).to(FLOAT)[:, None],
                               (others * wide_scale).to(FLOAT)[:, None])
                z = tl.where(corner[:, None], tl.where(tied, one, 0.0), z)
            z = tl.where(x < 0.0, -z, z)
            answer = tl.where(z == 0.0, 0.0, z * back[:, None])
            answer = tl.where(keep != 0, x, answer)
            if IN_PLACE:
                rounded = store_values(out, at, answer, mask & (keep == 0), dtype, ALIGNED, DTYPES)
            else:
                rounded = store_values(out, at, answer, mask, dtype, ALIGNED, DTYPES)
            y = tl.abs(rounded) * scale[:, None]
            exact = tl.where(keep != 0, y, tl.abs(z))
            l1, l2, norm = tl.sum(y, 1), tl.sum(y * y, 1), tl.sum(exact * exact, 1)
        else:
            top = tl.load(tops + slots, mask=rows, other=0.0)
            scale, back = power_of_two(top, WIDE)
            factor = tl.load(factors + slots, mask=rows, other=1.0)
            high, low = split_threshold(mu * beta * scale.to(tl.float64), BEYOND_TWO, WIDE)
            main = tl.zeros([R], tl.float64)
            others = tl.zeros([R], tl.float64)
            where = tl.full([R], -1, tl.int32)
            corner = rows & (factor == 0.0) & (keep == 0)
            if tl.sum(tl.where(corner, 1, 0), 0) > 0:
                largest, m, where = count_ties(address, offsets, rows, length, step, dtype, R, C,
                                         DTYPES, WIDE)
                main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top)
            tied_from = top * (1.0 - 4.44e-16 if WIDE else 1.0)
            main = (main * scale.to(tl.float64)).to(FLOAT)
            others = (others * scale.to(tl.float64)).to(FLOAT)
            l1_ = tl.zeros([R, C // FOLD], FLOAT)
            l2_ = tl.zeros([R, C // FOLD], FLOAT)
            norm_ = tl.zeros([R, C // FOLD], FLOAT)
            for k in range(0, length, C):
                entries = k + cols
                along = entries * step if COLUMNS else entries
                mask = rows[:, None] & (entries < length)[None, :]
                at = offsets[:, None] + along[None, :]
                x = load_values(address, at, mask, dtype, ALIGNED, DTYPES, WIDE)
                c = tl.abs(x)
                d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
                z = d * factor[:, None]
                entry = entries[None, :] + tl.zeros([R, C], tl.int32)
                one = tl.where(entry == where[:, None], main[:, None], others[:, None])
                one = tl.where(c >= tied_from[:, None], one, 0.0)
                z = tl.where(corner[:, None], one, z)
                z = tl.where(x < 0.0, -z, z)
                answer = tl.where(z == 0.0, 0.0, z * back[:, None])
                answer = tl.where(keep != 0, x, answer)
                if IN_PLACE:
                    rounded = store_values(out, at, answer, mask & (keep == 0), dtype, ALIGNED, DTYPES)
                else:
                    rounded = store_values(out, at, answer, mask, dtype, ALIGNED, DTYPES)
                y = tl.abs(rounded) * scale[:, None]
                exact = tl.where(keep != 0, y, tl.abs(z))
                l1_ += folded(y, R, C, FOLD)
                l2_ += folded(y * y, R, C, FOLD)
                norm_ += folded(exact * exact, R, C, FOLD)
            l1, l2, norm = tl.sum(l1_, 1), tl.sum(l2_, 1), tl.sum(norm_, 1)
        term = tl.where(l2 > 0.0, l1 * inverse_root(l2, WIDE), 1.0)
        size = norm * inverse_root(norm, WIDE)
        live = (factor > 0.0) & (keep == 0)
        value = tl.where(live, size / tl.where(live, factor, 1.0), size)
        wide = back.to(tl.float64)
        value = value.to(tl.float64) * wide
        # Where nothing is left but a corner, the dual value is that of its entry above threshold.
        corner_value = top.to(tl.float64) - mu * beta
        value = tl.where((factor == 0.0) & (keep == 0), corner_value, value)
        found = (tl.where(rows, term, 0.0).to(tl.float64),
                 tl.where(rows, size, 0.0).to(tl.float64) * wide, tl.where(rows, value, 0.0))
        sums = tl.reduce(found, 0, _gather)
        terms += sums[0]
        primal += sums[1]
        dual += sums[2]
    tl.store(result + TERMS, beta * terms)
    tl.store(result + PRIMAL, primal)
    tl.store(result + DUAL, dual)


@triton.jit
def _gather(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def split_write(table, vector, first, end, mu, keep, low_mu, high_mu, alpha, value, result,
                C: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr,
                IN_PLACE: tl.constexpr):
    """Write steps ``first`` to ``end`` of one vector."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    FOLD: tl.constexpr = 4 if ALIGNED else 1
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype = tl.load(table + DTYPE)
    item = tl.load(table + ITEM)
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    top, factor = tl.load(value), tl.load(value + 1)
    m, where = tl.load(value + 2), tl.load(value + 3)
    one = tl.full([1], 1.0, FLOAT)
    scale, back = power_of_two(one * top.to(FLOAT), WIDE)
    high, low = split_threshold(mu * beta * scale.to(tl.float64), BEYOND_TWO, WIDE)
    main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top)
    main = (main * scale.to(tl.float64)).to(FLOAT)
    others = (others * scale.to(tl.float64)).to(FLOAT)
    tied_from = one * top.to(FLOAT) * (1.0 - 4.44e-16 if WIDE else 1.0)
    corner = factor == 0.0
    cols = tl.arange(0, C)
    l1 = tl.zeros([1, C // FOLD], FLOAT)
    l2 = tl.zeros([1, C // FOLD], FLOAT)
    norm = tl.zeros([1, C // FOLD], FLOAT)
    skip = vector * tl.load(table + STRIDE) * item
    address = tl.load(table + ADDRESS) + skip
    out = tl.load(table + OUT) + skip
    for k in range(first, end):
        place, goal = address + k * C * item, out + k * C * item
        entry = k * C + cols.to(tl.int64)
        mask = k * C + cols < length
        x = load_values(place, cols, mask, dtype, ALIGNED, DTYPES, WIDE)
        c = tl.abs(x)
        z = tl.maximum(c * scale - high - low, 0.0) * factor.to(FLOAT)
        lone = tl.where(entry.to(tl.float64) == where, main, others)
        z = tl.where(corner, tl.where(c >= tied_from, lone, 0.0), z)
        z = tl.where(x < 0.0, -z, z)
        answer = tl.where(z == 0.0, 0.0, z * back)
        answer = tl.where(keep != 0, x, answer)
        if IN_PLACE:
            rounded = store_values(goal, cols, answer, mask & (keep == 0), dtype, ALIGNED, DTYPES)
        else:
            rounded = store_values(goal, cols, answer, mask, dtype, ALIGNED, DTYPES)
        y = tl.where(mask, tl.abs(rounded) * scale, 0.0)
        exact = tl.where(keep != 0, y, tl.where(mask, tl.abs(z), 0.0))
        l1 += folded(y, 1, C, FOLD)
        l2 += folded(y * y, 1, C, FOLD)
        norm += folded(exact * exact, 1, C, FOLD)
    tl.store(result + TERMS, whole(l1))
    tl.store(result + PRIMAL, whole(l2))
    tl.store(result + DUAL, whole(norm))
