"""The Triton kernel's passes: the sums of one segment, for every shape of vector.

A segment is a run of vectors of one tensor (or of steps of one split vector) that one program
walks. It ends in a few numbers; only these leave the program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_tiles import (
    BEYOND,
    BEYOND_TWO,
    LEAST,
    MOST,
    exponent_of,
    finished_sums,
    folded,
    folded_max,
    in_scale_of,
    load_values,
    power,
    power_of_two,
    propagating_max,
    split_mantissa,
    split_threshold,
)

# Columns of the table of tensors.
ADDRESS, OUT, LENGTH, STRIDE, STEP, INNER, ITEM, DTYPE, SLOT, LIMIT, TENSOR_FIELDS = (
    tl.constexpr(i) for i in range(11)
)
# Steps whose loads are under way at once: they wait in shared memory, not in registers.
STAGES = tl.constexpr(3)
# What is wrong with some vector: its unscaled sums cannot be trusted; it is not finite.
FLAW_ODD, FLAW_BAD = tl.constexpr(1.0), tl.constexpr(2.0)


@triton.jit
def tile_place(u, first, end, base, item, stride, inner, slot, R: tl.constexpr,
               COLUMNS: tl.constexpr):
    """Where tile ``u`` lies: its address, the offsets of its vectors, which exist, their slots."""
    r = tl.arange(0, R)
    if COLUMNS:
        blocks = (inner + R - 1) // R
        outer, block = u // blocks, u % blocks
        address = base + (outer * stride + block * R) * item
        offsets = r.to(tl.int64)
        rows = block * R + r < inner
        slots = slot + outer * inner + block * R + r
    else:
        address = base + u * stride * item
        offsets = r * stride
        rows = u + r < end
        slots = slot + u + r
    return address, offsets, rows, slots


@triton.jit
def segment_sums(table, first, end, mu, unscaled, tops, factors,
                 R: tl.constexpr, C: tl.constexpr, SINGLE: tl.constexpr, COLUMNS: tl.constexpr,
                 ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """Sums over a segment of whole vectors: total, slope, and what the search must know.

    A vector's numbers are held by every thread that has entries of it, so what is done once per
    vector costs more than what is done per entry: no float64, no division, no sum over vectors
    before the end.
    """
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    FOLD: tl.constexpr = 4 if ALIGNED else 1
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype, item = tl.load(table + DTYPE), tl.load(table + ITEM)
    base, step, stride = tl.load(table + ADDRESS), tl.load(table + STEP), tl.load(table + STRIDE)
    inner, slot = tl.load(table + INNER), tl.load(table + SLOT)
    limit = tl.load(table + LIMIT).to(tl.float64, bitcast=True).to(FLOAT)
    if ALIGNED:  # said where they are loaded, or the compiler forgets it
        length, stride = tl.multiple_of(length, 8), tl.multiple_of(stride, 8)
    gap = tl.sqrt(length.to(tl.float64)) - 1.0
    beta = 1.0 / gap
    high_, low_, raised = split_mantissa(mu * beta, WIDE)
    total = tl.zeros([R], FLOAT)
    slope = tl.zeros([R], FLOAT)
    upper = tl.zeros([R], FLOAT)
    flaws = tl.zeros([R], tl.float32)
    longest = tl.zeros([R], FLOAT)
    cols = tl.arange(0, C)
    # Tiles that are whole vectors are loaded ahead; longer ones are in the loop over their steps.
    for u in tl.range(first, end, 1 if COLUMNS else R, num_stages=STAGES if SINGLE else 1):
        address, offsets, rows, slots = tile_place(
            u, first, end, base, item, stride, inner, slot, R, COLUMNS)
        if SINGLE:
            # Short vectors: with a step that the compiler does not know, a thread gets all of one.
            along = cols * step if C == 16 else cols
            mask = rows[:, None] & (cols < length)[None, :]
            at = offsets[:, None] + along[None, :]
            c = tl.abs(load_values(address, at, mask, dtype, ALIGNED, DTYPES, WIDE))
            top = tl.reduce(c, 1, propagating_max)
            exponent = exponent_of(top, WIDE)
            scale, back = power((2046 if WIDE else 254) - exponent, WIDE), power(exponent, WIDE)
            high, low = in_scale_of(exponent, high_, low_, raised, WIDE)
            d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
            s = tl.sum(d, 1)
            q = tl.sum(d * d, 1)
            n = tl.sum(tl.where(d > 0.0, 1.0, 0.0), 1)
        else:
            if unscaled != 0:
                scale = tl.full([R], 1.0, FLOAT)
                back = scale
                high, low = split_threshold(mu * beta + tl.zeros([R], tl.float64), BEYOND, WIDE)
            else:
                exponent = exponent_of(tl.load(tops + slots, mask=rows, other=0.0), WIDE)
                scale, back = power((2046 if WIDE else 254) - exponent, WIDE), power(exponent, WIDE)
                high, low = in_scale_of(exponent, high_, low_, raised, WIDE)
            s_ = tl.zeros([R, C // FOLD], FLOAT)
            q_ = tl.zeros([R, C // FOLD], FLOAT)
            n_ = tl.zeros([R, C // FOLD], FLOAT)
            top_ = tl.zeros([R, C // FOLD], FLOAT)
            for k in tl.range(0, length, C, num_stages=STAGES):
                entry = k + cols
                along = entry * step if COLUMNS else entry
                mask = rows[:, None] & (entry < length)[None, :]
                at = offsets[:, None] + along[None, :]
                c = tl.abs(load_values(address, at, mask, dtype, ALIGNED, DTYPES, WIDE))
                top_ = propagating_max(top_, folded_max(c, R, C, FOLD))
                d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
                s_ += folded(d, R, C, FOLD)
                q_ += folded(d * d, R, C, FOLD)
                n_ += folded(tl.where(d > 0.0, 1.0, 0.0), R, C, FOLD)
            top = tl.reduce(top_, 1, propagating_max)
            s, q, n = tl.sum(s_, 1), tl.sum(q_, 1), tl.sum(n_, 1)
            tl.store(tops + slots, top, mask=rows)
            if unscaled != 0:
                odd = rows & (top > 0.0) & ((top < LEAST) | (top > MOST))
                flaws = tl.maximum(flaws, tl.where(odd, FLAW_ODD, 0.0))
        term, steeper, factor = finished_sums(s, q, n, high, WIDE)
        if not SINGLE:
            tl.store(factors + slots, factor, mask=rows)
        flaws = tl.maximum(flaws, tl.where(rows & ~(top < float("inf")), FLAW_BAD, 0.0))
        # The slope in the logarithm of μ has no scale; at μ = 0 there is only the other one.
        steeper *= tl.where(mu > 0.0, high, scale)
        # The largest entry of the answer, in units of the largest number of the tensor's type.
        grown = ((top * scale - high) * factor) * (back * limit)
        total += tl.where(rows, term, 0.0)
        slope += tl.where(rows, steeper, 0.0)
        upper = tl.maximum(upper, tl.where(rows, top, 0.0))
        longest = tl.maximum(longest, tl.where(rows, grown, 0.0))
    rate = beta * tl.where(mu > 0.0, 1.0 / tl.where(mu > 0.0, mu, 1.0), beta)
    return (
        tl.sum(total.to(tl.float64), 0) * beta, tl.sum(slope.to(tl.float64), 0) * rate,
        tl.max(upper, 0).to(tl.float64) * gap, tl.max(flaws, 0).to(tl.float64),
        tl.max(longest, 0).to(tl.float64),
    )


@triton.jit
def flat(x):
    return tl.reshape(x, [x.numel])


@triton.jit
def whole(x):
    return tl.sum(flat(x).to(tl.float64), 0)


@triton.jit
def split_sums(table, vector, first, end, mu, unscaled, top, C: tl.constexpr,
               ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """Sums over steps ``first`` to ``end`` of one vector; its largest entry is known as ``top``."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype = tl.load(table + DTYPE)
    item = tl.load(table + ITEM)
    FOLD: tl.constexpr = 4 if ALIGNED else 1
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    one = tl.full([1], 1.0, FLOAT)
    scale = one
    high, low = split_threshold(mu * beta * one.to(tl.float64), BEYOND, WIDE)
    if unscaled == 0:
        scale, _ = power_of_two(one * top.to(FLOAT), WIDE)
        high, low = split_threshold(mu * beta * scale.to(tl.float64), BEYOND_TWO, WIDE)
    # Nothing is left of it, or nearly: where the largest entries are is needed.
    corner = (mu * beta >= 0.999 * top).to(tl.int32)
    tied = one * top.to(FLOAT) * (1.0 - 4.44e-16 if WIDE else 1.0)
    cols = tl.arange(0, C)
    s_ = tl.zeros([1, C // FOLD], FLOAT)
    q_ = tl.zeros([1, C // FOLD], FLOAT)
    n_ = tl.zeros([1, C // FOLD], FLOAT)
    m_ = tl.zeros([1, C // FOLD], FLOAT)
    top_ = tl.zeros([1, C // FOLD], FLOAT)
    where = tl.load(table + LENGTH)
    address = tl.load(table + ADDRESS) + vector * tl.load(table + STRIDE) * item
    for k in tl.range(first, end, num_stages=STAGES):
        place = address + k * C * item
        mask = k * C + cols < length
        c = tl.abs(load_values(place, cols, mask, dtype, ALIGNED, DTYPES, WIDE))
        top_ = propagating_max(top_, folded_max(c, 1, C, FOLD))
        d = tl.maximum(c * scale - high - low, 0.0)
        s_ += folded(d, 1, C, FOLD)
        q_ += folded(d * d, 1, C, FOLD)
        n_ += folded(tl.where(d > 0.0, 1.0, 0.0), 1, C, FOLD)
        if corner != 0:
            largest = (c >= tied) & mask
            m_ += folded(tl.where(largest, 1.0, 0.0), 1, C, FOLD)
            where = tl.minimum(where, k * C + tl.min(tl.where(largest, cols, 1 << 30), 0))
    return (
        whole(s_), whole(q_), whole(n_), tl.reduce(flat(top_), 0, propagating_max), whole(m_),
        where,
    )


@triton.jit
def blended_length(m, alpha):
    """ℓ₁ of the unit vector that is α of one entry and 1 − α of m equal ones."""
    rest = 1.0 - alpha
    norm = tl.sqrt(rest * rest + alpha * alpha + 2.0 * alpha * rest / tl.sqrt(m))
    return (rest * tl.sqrt(m) + alpha) / norm


@triton.jit
def tied_gain(m, top, low_mu, high_mu, alpha, beta, rows):
    """What vectors whose largest entries leave together gain over their 1-sparse answers."""
    wide = top.to(tl.float64)
    jumps = rows & (low_mu * beta < wide) & (wide <= high_mu * beta)
    m = tl.maximum(m.to(tl.float64), 1.0)
    return tl.where(jumps, beta * (blended_length(m, alpha) - 1.0), 0.0)


@triton.jit
def count_ties(address, offsets, rows, length, step, dtype,
               R: tl.constexpr, C: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """The largest entry of each vector, how many equal it, and the first of them."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    cols = tl.arange(0, C)
    top_ = tl.zeros([R, C], FLOAT)
    for k in range(0, length, C):
        mask = rows[:, None] & (k + cols < length)[None, :]
        at = offsets[:, None] + ((k + cols) * step)[None, :]
        c = tl.abs(load_values(address, at, mask, dtype, False, DTYPES, WIDE))
        top_ = tl.maximum(top_, c)
    top = tl.max(top_, 1)
    tied = top * (1.0 - 4.44e-16 if WIDE else 1.0)
    m_ = tl.zeros([R, C], FLOAT)
    where_ = tl.full([R, C], 1 << 30, tl.int32)
    for k in range(0, length, C):
        mask = rows[:, None] & (k + cols < length)[None, :]
        at = offsets[:, None] + ((k + cols) * step)[None, :]
        c = tl.abs(load_values(address, at, mask, dtype, False, DTYPES, WIDE))
        largest = (c >= tied[:, None]) & mask
        m_ += tl.where(largest, 1.0, 0.0)
        entry = (k + cols)[None, :] + tl.zeros([R, C], tl.int32)
        where_ = tl.minimum(where_, tl.where(largest, entry, 1 << 30))
    return top, tl.sum(m_, 1), tl.min(where_, 1)


@triton.jit
def segment_ties(table, first, end, low_mu, high_mu, alpha, R: tl.constexpr, C: tl.constexpr,
                 COLUMNS: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """The gain of all tied vectors of a segment at blend ``alpha``. Rare, so simple."""
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype = tl.load(table + DTYPE)
    step = tl.load(table + STEP)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    gain = low_mu * 0.0
    base, item, stride = tl.load(table + ADDRESS), tl.load(table + ITEM), tl.load(table + STRIDE)
    inner = tl.load(table + INNER)
    for u in range(first, end, 1 if COLUMNS else R):
        address, offsets, rows, _ = tile_place(u, first, end, base, item, stride, inner, 0, R,
                                               COLUMNS)
        top, m, _ = count_ties(address, offsets, rows, length, step, dtype, R, C, DTYPES, WIDE)
        gain += tl.sum(tied_gain(m, top, low_mu, high_mu, alpha, beta, rows), 0)
    return gain
