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
)
from .triton_tiles import (
    growth_factor,
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
    length = tl.load(table + LENGTH)
    dtype = tl.load(table + DTYPE)
    step = tl.load(table + STEP)
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    terms = tl.zeros([R], tl.float64)
    primal = tl.zeros([R], tl.float64)
    dual = tl.zeros([R], tl.float64)
    cols = tl.arange(0, C)
    for u in range(first, end, 1 if COLUMNS else R):
        address, offsets, rows, slots = tile_place(u, first, end, table, False, R, COLUMNS, ALIGNED)
        out, _, _, _ = tile_place(u, first, end, table, True, R, COLUMNS, ALIGNED)
        if SINGLE:
            along = cols * step if COLUMNS else cols
            mask = rows[:, None] & (cols < length)[None, :]
            at = offsets[:, None] + along[None, :]
            x = load_values(address, at, mask, dtype, DTYPES, WIDE)
            c = tl.abs(x)
            top = tl.reduce(c, 1, propagating_max)
            scale = power_of_two(top, WIDE)
            t = mu * beta * scale.to(tl.float64)
            high, low = split_threshold(t, WIDE)
            d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
            factor = growth_factor(t, tl.sum(d, 1), tl.sum(d * d, 1))
            z = d * factor.to(FLOAT)[:, None]
            # Corners: the largest entries alone.
            tied = (c >= (top * (1.0 - 4.44e-16 if WIDE else 1.0))[:, None]) & mask
            m = tl.sum(tl.where(tied, 1.0, 0.0), 1)
            entry = cols[None, :] + tl.zeros([R, C], tl.int32)
            where = tl.min(tl.where(tied, entry, 1 << 30), 1)
            main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top)
            wide_scale = scale.to(tl.float64)
            one = tl.where(entry == where[:, None], (main * wide_scale).to(FLOAT)[:, None],
                           (others * wide_scale).to(FLOAT)[:, None])
            corner = (factor == 0.0)[:, None]
            z = tl.where(corner, tl.where(tied, one, 0.0), z)
            back = 1.0 / scale
            z = tl.where(x < 0.0, -z, z)
            answer = tl.where(z == 0.0, 0.0, z * back[:, None])
            answer = tl.where(keep != 0, x, answer)
            if IN_PLACE:
                rounded = store_values(out, at, answer, mask & (keep == 0), dtype, DTYPES)
            else:
                rounded = store_values(out, at, answer, mask, dtype, DTYPES)
            y = tl.abs(rounded) * scale[:, None]
            exact = tl.where(keep != 0, y, tl.abs(z))
            l1, l2, norm = tl.sum(y, 1), tl.sum(y * y, 1), tl.sum(exact * exact, 1)
        else:
            top = tl.load(tops + slots, mask=rows, other=0.0)
            scale = power_of_two(top, WIDE)
            factor = tl.load(factors + slots, mask=rows, other=1.0).to(tl.float64)
            t = mu * beta * scale.to(tl.float64)
            high, low = split_threshold(t, WIDE)
            back = 1.0 / scale
            main = tl.zeros([R], tl.float64)
            others = tl.zeros([R], tl.float64)
            where = tl.full([R], -1, tl.int64)
            corner = rows & (factor == 0.0) & (keep == 0)
            if tl.sum(tl.where(corner, 1, 0), 0) > 0:
                _, m, where = count_ties(address, offsets, rows, length, step, dtype, R, C,
                                         DTYPES, WIDE)
                main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top)
            tied_from = top * (1.0 - 4.44e-16 if WIDE else 1.0)
            main = (main * scale.to(tl.float64)).to(FLOAT)
            others = (others * scale.to(tl.float64)).to(FLOAT)
            l1_ = tl.zeros([R, C], FLOAT)
            l2_ = tl.zeros([R, C], FLOAT)
            norm_ = tl.zeros([R, C], FLOAT)
            for k in range(0, length, C):
                entries = k + cols
                along = entries * step if COLUMNS else entries
                mask = rows[:, None] & (entries < length)[None, :]
                at = offsets[:, None] + along[None, :]
                x = load_values(address, at, mask, dtype, DTYPES, WIDE)
                c = tl.abs(x)
                d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
                z = d * factor.to(FLOAT)[:, None]
                entry = entries.to(tl.int64)[None, :] + tl.zeros([R, C], tl.int64)
                one = tl.where(entry == where[:, None], main[:, None], others[:, None])
                one = tl.where(c >= tied_from[:, None], one, 0.0)
                z = tl.where(corner[:, None], one, z)
                z = tl.where(x < 0.0, -z, z)
                answer = tl.where(z == 0.0, 0.0, z * back[:, None])
                answer = tl.where(keep != 0, x, answer)
                if IN_PLACE:
                    rounded = store_values(out, at, answer, mask & (keep == 0), dtype, DTYPES)
                else:
                    rounded = store_values(out, at, answer, mask, dtype, DTYPES)
                y = tl.abs(rounded) * scale[:, None]
                exact = tl.where(keep != 0, y, tl.abs(z))
                l1_ += tl.where(mask, y, 0.0)
                l2_ += tl.where(mask, y * y, 0.0)
                norm_ += tl.where(mask, exact * exact, 0.0)
            l1, l2, norm = tl.sum(l1_, 1), tl.sum(l2_, 1), tl.sum(norm_, 1)
        l1, l2 = l1.to(tl.float64), l2.to(tl.float64)
        present = l2 > 0.0
        term = tl.where(present, l1 / tl.sqrt(tl.where(present, l2, 1.0)), 1.0)
        terms += tl.where(rows, beta * term, 0.0)
        wide = scale.to(tl.float64)
        size = tl.sqrt(norm.to(tl.float64)) / wide
        primal += tl.where(rows, size, 0.0)
        live = factor > 0.0
        corner_value = top.to(tl.float64) - mu * beta
        value = tl.where(live, size / tl.where(live, factor, 1.0), corner_value)
        dual += tl.where(rows, tl.where(keep != 0, size, value), 0.0)
    tl.store(result + TERMS, tl.sum(terms, 0))
    tl.store(result + PRIMAL, tl.sum(primal, 0))
    tl.store(result + DUAL, tl.sum(dual, 0))


@triton.jit
def split_write(table, vector, first, end, mu, keep, low_mu, high_mu, alpha, value, result,
                C: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr,
                IN_PLACE: tl.constexpr):
    """Write steps ``first`` to ``end`` of one vector."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    length = tl.load(table + LENGTH)
    dtype = tl.load(table + DTYPE)
    item = tl.load(table + ITEM)
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    top, factor = tl.load(value), tl.load(value + 1)
    m, where = tl.load(value + 2), tl.load(value + 3)
    one = tl.full([1], 1.0, FLOAT)
    scale = power_of_two(one * top.to(FLOAT), WIDE)
    high, low = split_threshold(mu * beta * scale.to(tl.float64), WIDE)
    back = 1.0 / scale
    main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top)
    main = (main * scale.to(tl.float64)).to(FLOAT)
    others = (others * scale.to(tl.float64)).to(FLOAT)
    tied_from = one * top.to(FLOAT) * (1.0 - 4.44e-16 if WIDE else 1.0)
    corner = factor == 0.0
    cols = tl.arange(0, C)
    l1 = tl.zeros([C], FLOAT)
    l2 = tl.zeros([C], FLOAT)
    norm = tl.zeros([C], FLOAT)
    skip = vector * tl.load(table + STRIDE) * item
    address = tl.load(table + ADDRESS) + skip
    out = tl.load(table + OUT) + skip
    for k in range(first, end):
        place, goal = address + k * C * item, out + k * C * item
        if ALIGNED:
            place, goal = tl.multiple_of(place, 16), tl.multiple_of(goal, 16)
        entry = k * C + cols.to(tl.int64)
        mask = k * C + cols < length
        x = load_values(place, cols, mask, dtype, DTYPES, WIDE)
        c = tl.abs(x)
        z = tl.maximum(c * scale - high - low, 0.0) * factor.to(FLOAT)
        lone = tl.where(entry.to(tl.float64) == where, main, others)
        z = tl.where(corner, tl.where(c >= tied_from, lone, 0.0), z)
        z = tl.where(x < 0.0, -z, z)
        answer = tl.where(z == 0.0, 0.0, z * back)
        answer = tl.where(keep != 0, x, answer)
        if IN_PLACE:
            rounded = store_values(goal, cols, answer, mask & (keep == 0), dtype, DTYPES)
        else:
            rounded = store_values(goal, cols, answer, mask, dtype, DTYPES)
        y = tl.where(mask, tl.abs(rounded) * scale, 0.0)
        exact = tl.where(keep != 0, y, tl.where(mask, tl.abs(z), 0.0))
        l1 += y
        l2 += y * y
        norm += exact * exact
    tl.store(result + TERMS, tl.sum(l1.to(tl.float64), 0))
    tl.store(result + PRIMAL, tl.sum(l2.to(tl.float64), 0))
    tl.store(result + DUAL, tl.sum(norm.to(tl.float64), 0))
