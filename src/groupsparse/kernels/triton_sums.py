"""The Triton kernel's passes: the sums of one segment, for every shape of vector.

A segment is a run of vectors of one tensor (or of steps of one split vector) that one program
walks. It ends in a few numbers; only these leave the program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_tiles import (
    LEAST,
    MOST,
    NOWHERE,
    finished_sums,
    growth_factor,
    load_values,
    power_of_two,
    propagating_max,
    split_threshold,
    split_unscaled,
)

# Columns of the table of tensors.
ADDRESS, OUT, LENGTH, STRIDE, STEP, INNER, ITEM, DTYPE, SLOT, LIMIT, TENSOR_FIELDS = (
    tl.constexpr(i) for i in range(11)
)
# Kinds of segments: see the table KINDS in ``triton_gpu``.


@triton.jit
def tile_place(u, first, end, table, OUTPUT: tl.constexpr, R: tl.constexpr, COLUMNS: tl.constexpr,
               ALIGNED: tl.constexpr):
    """Where tile ``u`` lies: its address, the offsets of its vectors, which exist, their slots."""
    address = tl.load(table + (OUT if OUTPUT else ADDRESS))
    item = tl.load(table + ITEM)
    stride = tl.load(table + STRIDE)
    slot = tl.load(table + SLOT)
    r = tl.arange(0, R)
    if COLUMNS:
        inner = tl.load(table + INNER)
        blocks = (inner + R - 1) // R
        outer, block = u // blocks, u % blocks
        address += (outer * stride + block * R) * item
        offsets = r.to(tl.int64)
        rows = block * R + r < inner
        slots = slot + outer * inner + block * R + r
    else:
        if ALIGNED:
            stride = tl.multiple_of(stride, 8)
        address += u * stride * item
        offsets = r * stride
        rows = u + r < end
        slots = slot + u + r
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address, offsets, rows, slots


@triton.jit
def segment_sums(table, first, end, mu, unscaled, tops, factors,
                 R: tl.constexpr, C: tl.constexpr, SINGLE: tl.constexpr, COLUMNS: tl.constexpr,
                 ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """Sums over a segment of whole vectors: total, slope, and what the search must know."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    length = tl.load(table + LENGTH)
    dtype = tl.load(table + DTYPE)
    limit = tl.load(table + LIMIT).to(tl.float64, bitcast=True)
    step = tl.load(table + STEP)
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    total = tl.zeros([R], tl.float64)
    slope = tl.zeros([R], tl.float64)
    upper = tl.zeros([R], tl.float64)
    bad = tl.zeros([R], tl.int32)
    strange = tl.zeros([R], tl.int32)
    longest = tl.zeros([R], tl.float64)
    cols = tl.arange(0, C)
    for u in range(first, end, 1 if COLUMNS else R):
        address, offsets, rows, slots = tile_place(u, first, end, table, False, R, COLUMNS, ALIGNED)
        if SINGLE:
            along = cols * step if COLUMNS else cols
            mask = rows[:, None] & (cols < length)[None, :]
            at = offsets[:, None] + along[None, :]
            c = tl.abs(load_values(address, at, mask, dtype, DTYPES, WIDE))
            top = tl.reduce(c, 1, propagating_max)
            scale = power_of_two(top, WIDE)
            t = mu * beta * scale.to(tl.float64)
            high, low = split_threshold(t, WIDE)
            d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
            s = tl.sum(d, 1)
            q = tl.sum(d * d, 1)
            n = tl.sum(tl.where(d > 0.0, 1.0, 0.0), 1)
        else:
            if unscaled != 0:
                scale = tl.full([R], 1.0, FLOAT)
                t = mu * beta * scale.to(tl.float64)
                high, low = split_unscaled(t, WIDE)
            else:
                scale = power_of_two(tl.load(tops + slots, mask=rows, other=0.0), WIDE)
                t = mu * beta * scale.to(tl.float64)
                high, low = split_threshold(t, WIDE)
            s_ = tl.zeros([R, C], FLOAT)
            q_ = tl.zeros([R, C], FLOAT)
            n_ = tl.zeros([R, C], FLOAT)
            top_ = tl.zeros([R, C], FLOAT)
            for k in range(0, length, C):
                entry = k + cols
                along = entry * step if COLUMNS else entry
                mask = rows[:, None] & (entry < length)[None, :]
                at = offsets[:, None] + along[None, :]
                c = tl.abs(load_values(address, at, mask, dtype, DTYPES, WIDE))
                top_ = propagating_max(top_, c)
                d = tl.maximum(c * scale[:, None] - high[:, None] - low[:, None], 0.0)
                s_ += d
                q_ += d * d
                n_ += tl.where(d > 0.0, 1.0, 0.0)
            top = tl.reduce(top_, 1, propagating_max)
            s, q, n = tl.sum(s_, 1), tl.sum(q_, 1), tl.sum(n_, 1)
            tl.store(tops + slots, top, mask=rows)
            tl.store(factors + slots, growth_factor(t, s, q).to(FLOAT), mask=rows)
            if unscaled != 0:
                odd = (top > 0.0) & ((top < LEAST) | (top > MOST))
                strange += tl.where(rows & odd, 1, 0)
        more, steeper = finished_sums(s, q, n, beta, scale, rows)
        total += more
        slope += steeper
        bad += tl.where(rows & ~(top < float("inf")), 1, 0)
        wide = top.to(tl.float64)
        upper = tl.maximum(upper, tl.where(rows, wide / beta, 0.0))
        # The largest entry of the answer, in units of the largest number of the tensor's type.
        grown = (wide - t / scale.to(tl.float64)) * growth_factor(t, s, q) * limit
        longest = tl.maximum(longest, tl.where(rows, grown, 0.0))
    return (
        tl.sum(total, 0), tl.sum(slope, 0), tl.max(upper, 0), tl.sum(bad, 0), tl.sum(strange, 0),
        tl.max(longest, 0),
    )


@triton.jit
def split_sums(table, vector, first, end, mu, unscaled, top, C: tl.constexpr,
               ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """Sums over steps ``first`` to ``end`` of one vector; its largest entry is known as ``top``."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    length = tl.load(table + LENGTH)
    dtype = tl.load(table + DTYPE)
    item = tl.load(table + ITEM)
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    one = tl.full([1], 1.0, FLOAT)
    scale = one
    high, low = split_unscaled(mu * beta * one.to(tl.float64), WIDE)
    if unscaled == 0:
        scale = power_of_two(one * top.to(FLOAT), WIDE)
        high, low = split_threshold(mu * beta * scale.to(tl.float64), WIDE)
    tied = one * top.to(FLOAT) * (1.0 - 4.44e-16 if WIDE else 1.0)
    cols = tl.arange(0, C)
    s_ = tl.zeros([C], FLOAT)
    q_ = tl.zeros([C], FLOAT)
    n_ = tl.zeros([C], FLOAT)
    m_ = tl.zeros([C], FLOAT)
    top_ = tl.zeros([C], FLOAT)
    where_ = tl.full([C], NOWHERE, tl.int64)
    address = tl.load(table + ADDRESS) + vector * tl.load(table + STRIDE) * item
    for k in range(first, end):
        place = address + k * C * item
        if ALIGNED:
            place = tl.multiple_of(place, 16)
        mask = k * C + cols < length
        c = tl.abs(load_values(place, cols, mask, dtype, DTYPES, WIDE))
        top_ = propagating_max(top_, c)
        d = tl.maximum(c * scale - high - low, 0.0)
        s_ += d
        q_ += d * d
        n_ += tl.where(d > 0.0, 1.0, 0.0)
        largest = (c >= tied) & mask
        m_ += tl.where(largest, 1.0, 0.0)
        where_ = tl.minimum(where_, tl.where(largest, k * C + cols.to(tl.int64), NOWHERE))
    return (
        tl.sum(s_.to(tl.float64), 0), tl.sum(q_.to(tl.float64), 0), tl.sum(n_.to(tl.float64), 0),
        tl.reduce(top_, 0, propagating_max), tl.sum(m_, 0), tl.min(where_, 0),
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
        c = tl.abs(load_values(address, at, mask, dtype, DTYPES, WIDE))
        top_ = tl.maximum(top_, c)
    top = tl.max(top_, 1)
    tied = top * (1.0 - 4.44e-16 if WIDE else 1.0)
    m_ = tl.zeros([R, C], FLOAT)
    where_ = tl.full([R, C], NOWHERE, tl.int64)
    for k in range(0, length, C):
        mask = rows[:, None] & (k + cols < length)[None, :]
        at = offsets[:, None] + ((k + cols) * step)[None, :]
        c = tl.abs(load_values(address, at, mask, dtype, DTYPES, WIDE))
        largest = (c >= tied[:, None]) & mask
        m_ += tl.where(largest, 1.0, 0.0)
        entry = (k + cols).to(tl.int64)[None, :] + tl.zeros([R, C], tl.int64)
        where_ = tl.minimum(where_, tl.where(largest, entry, NOWHERE))
    return top, tl.sum(m_, 1), tl.min(where_, 1)


@triton.jit
def segment_ties(table, first, end, low_mu, high_mu, alpha, R: tl.constexpr, C: tl.constexpr,
                 COLUMNS: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """The gain of all tied vectors of a segment at blend ``alpha``. Rare, so simple."""
    length = tl.load(table + LENGTH)
    dtype = tl.load(table + DTYPE)
    step = tl.load(table + STEP)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    gain = tl.zeros([R], tl.float64)
    for u in range(first, end, 1 if COLUMNS else R):
        address, offsets, rows, _ = tile_place(u, first, end, table, False, R, COLUMNS, False)
        top, m, _ = count_ties(address, offsets, rows, length, step, dtype, R, C, DTYPES, WIDE)
        gain += tied_gain(m, top, low_mu, high_mu, alpha, beta, rows)
    return tl.sum(gain, 0)
