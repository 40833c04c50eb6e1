"""The Triton kernel's last pass: write the answer of one segment, and measure what was written."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_sums import (
    ADDRESS,
    DTYPE,
    INNER,
    ITEM,
    LENGTH,
    OUT,
    SLOT,
    STAGES,
    STEP,
    STRIDE,
    blended_length,
    count_ties,
    tile_place,
    whole,
)
from .triton_tiles import (
    BEYOND_TWO,
    FLOAT32,
    FLOAT64,
    exponent_of,
    finished_sums,
    folded,
    in_scale_of,
    inverse_root,
    load_values,
    power,
    power_of_two,
    propagating_max,
    split_mantissa,
    split_threshold,
    store_values,
)

# What a segment reports: Σ β‖z‖₁/‖z‖₂, Σ‖z‖₂ and the dual value without its multiplier's part.
# Parts of split vectors report ‖z‖₁, ‖z‖₂² and the unrounded ‖z‖₂² in units of their scale.
TERMS, PRIMAL, DUAL, VALUE_FIELDS = (tl.constexpr(i) for i in range(4))


@triton.jit
def _corner_values(m, low_mu, high_mu, alpha, beta, top, scale):
    """The two values of a vector that is left with its m largest entries: the first's, the rest's.

    In the scale of the tile: z = (|c|ᵀx) x for the unit vector x that is α of the first entry and
    1 − α of all m.
    """
    wide = top.to(tl.float64)
    jumps = (low_mu * beta < wide) & (wide <= high_mu * beta)
    alpha = tl.where(jumps, alpha, 1.0)
    m = tl.maximum(m.to(tl.float64), 1.0)
    rest = (1.0 - alpha) / tl.sqrt(m)
    norm = tl.sqrt((rest + alpha) * (rest + alpha) + (m - 1.0) * rest * rest)
    size = wide * scale.to(tl.float64) * blended_length(m, alpha)
    return size * (rest + alpha) / norm, size * rest / norm


@triton.jit
def _signed(x, z, back):
    """z with the signs of x, in the vector's own scale; no zero is negative."""
    return tl.where(x < 0.0, 0.0 - z, z) * back


@triton.jit
def _from(top, WIDE: tl.constexpr):
    """From where on entries count as equal to the largest one."""
    return top * (1.0 - 4.44e-16 if WIDE else 1.0)


@triton.jit
def _with_lone(c, z, corner, top, WIDE: tl.constexpr):
    """z, and in corners the largest entries as they are: the answer unless there are several."""
    start = tl.where(corner, _from(top, WIDE), float("inf"))
    return tl.where(c >= start[:, None], c, z)


@triton.jit
def _tied(l1, corner, top):
    """Which corners have several largest entries."""
    return corner & (l1 > 1.5 * top)


@triton.jit
def _shared_entries(c, top, entry, where, main, others, WIDE: tl.constexpr):
    """A tied corner's entries: the first of the largest, its equals, and nothing else."""
    shared = tl.where(entry == where[:, None], main[:, None], others[:, None])
    return tl.where(c >= _from(top, WIDE)[:, None], shared, 0.0)


@triton.jit
def segment_write(table, first, end, mu, keep, low_mu, high_mu, alpha, tops, factors, result,
                  R: tl.constexpr, C: tl.constexpr, SINGLE: tl.constexpr, COLUMNS: tl.constexpr,
                  ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr,
                  IN_PLACE: tl.constexpr):
    """Write a segment of whole vectors; with ``keep`` they stay what they are."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    FOLD: tl.constexpr = 4 if ALIGNED else 1
    # Working type and type of the tensors are one: what is written is what was computed.
    EXACT: tl.constexpr = DTYPES == FLOAT64 if WIDE else DTYPES == FLOAT32
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype, item = tl.load(table + DTYPE), tl.load(table + ITEM)
    base, step, stride = tl.load(table + ADDRESS), tl.load(table + STEP), tl.load(table + STRIDE)
    shift = tl.load(table + OUT) - base
    inner, slot = tl.load(table + INNER), tl.load(table + SLOT)
    if ALIGNED:
        length, stride = tl.multiple_of(length, 8), tl.multiple_of(stride, 8)
        shift = tl.multiple_of(shift, 16)
    # What is kept has threshold 0 and factor 1, and needs no store where it is.
    mu = tl.where(keep != 0, 0.0, mu)
    until = tl.where(keep != 0, 0, length) if IN_PLACE else length
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    high_, low_, raised = split_mantissa(mu * beta, WIDE)
    terms = tl.zeros([R], FLOAT)
    primal = tl.zeros([R], tl.float64)
    dual = tl.zeros([R], tl.float64)
    cols = tl.arange(0, C)
    for u in tl.range(first, end, 1 if COLUMNS else R, num_stages=STAGES if SINGLE else 1):
        address, offsets, rows, slots = tile_place(
            u, first, end, base, item, stride, inner, slot, R, COLUMNS)
        if SINGLE:
            along = cols * step if C == 16 else cols
            mask = rows[:, None] & (cols < length)[None, :]
            at = offsets[:, None] + along[None, :]
            x = load_values(address, at, mask, dtype, ALIGNED, DTYPES, WIDE)
            c = tl.abs(x)
            top = tl.reduce(c, 1, propagating_max)
            exponent = exponent_of(top, WIDE)
            scale, back = power((2046 if WIDE else 254) - exponent, WIDE), power(exponent, WIDE)
            high, low = in_scale_of(exponent, high_, low_, raised, WIDE)
            c_ = c * scale[:, None]
            d = tl.maximum(c_ - high[:, None] - low[:, None], 0.0)
            _, _, factor = finished_sums(tl.sum(d, 1), tl.sum(d * d, 1), top, high, WIDE)
            factor = tl.where(keep != 0, 1.0, factor)
            corner = rows & (factor == 0.0)
            z = _with_lone(c_, d * factor[:, None], corner, top * scale, WIDE)
            if tl.sum(tl.where(corner, 1, 0), 0) > 0:
                tied = _tied(tl.sum(z, 1), corner, top * scale)
                if tl.sum(tl.where(tied, 1, 0), 0) > 0:
                    largest = (c >= _from(top, WIDE)[:, None]) & mask
                    m = tl.sum(tl.where(largest, 1.0, 0.0), 1)
                    entry = cols[None, :] + tl.zeros(c.shape, tl.int32)
                    where = tl.min(tl.where(largest, entry, 1 << 30), 1)
                    main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top, scale)
                    shared = _shared_entries(
                        c, top, entry, where, main.to(FLOAT), others.to(FLOAT), WIDE)
                    z = tl.where(tied[:, None] & mask, shared, z)
            answer = _signed(x, z, back[:, None])
            if not IN_PLACE:
                answer = tl.where(keep != 0, x, answer)
            put = rows[:, None] & (cols < until)[None, :]
            rounded = store_values(address + shift, at, answer, put, dtype, ALIGNED, DTYPES)
            y = tl.abs(rounded) * scale[:, None]
            l1, l2, norm = tl.sum(y, 1), tl.sum(y * y, 1), tl.sum(z * z, 1)
        else:
            top = tl.load(tops + slots, mask=rows, other=0.0)
            factor = tl.load(factors + slots, mask=rows, other=1.0)
            factor = tl.where(keep != 0, 1.0, factor)
            exponent = exponent_of(top, WIDE)
            scale, back = power((2046 if WIDE else 254) - exponent, WIDE), power(exponent, WIDE)
            high, low = in_scale_of(exponent, high_, low_, raised, WIDE)
            corner = rows & (factor == 0.0)
            l1_ = tl.zeros([R, C // FOLD], FLOAT)
            l2_ = tl.zeros([R, C // FOLD], FLOAT)
            norm_ = tl.zeros([R, C // FOLD], FLOAT)
            for k in tl.range(0, length, C, num_stages=STAGES):
                entries = k + cols
                along = entries * step if COLUMNS else entries
                mask = rows[:, None] & (entries < length)[None, :]
                at = offsets[:, None] + along[None, :]
                x = load_values(address, at, mask, dtype, ALIGNED, DTYPES, WIDE)
                c_ = tl.abs(x) * scale[:, None]
                z = tl.maximum(c_ - high[:, None] - low[:, None], 0.0) * factor[:, None]
                z = _with_lone(c_, z, corner, top * scale, WIDE)
                answer = _signed(x, z, back[:, None])
                if not IN_PLACE:
                    answer = tl.where(keep != 0, x, answer)
                put = rows[:, None] & (entries < until)[None, :]
                rounded = store_values(address + shift, at, answer, put, dtype, ALIGNED, DTYPES)
                y = tl.abs(rounded) * scale[:, None]
                l1_ += folded(y, R, C, FOLD)
                l2_ += folded(y * y, R, C, FOLD)
                if not EXACT:
                    norm_ += folded(z * z, R, C, FOLD)
            l1, l2 = tl.sum(l1_, 1), tl.sum(l2_, 1)
            norm = l2 if EXACT else tl.sum(norm_, 1)
            tied = _tied(l1, corner, top * scale)
            if tl.sum(tl.where(tied, 1, 0), 0) > 0:
                tl.debug_barrier()  # what other threads wrote is read again
                l1_c, l2_c, norm_c = _share_among_ties(
                    address, address + shift, offsets, tied, length, step, dtype, low_mu, high_mu,
                    alpha, beta, top, scale, back, R, 32, DTYPES, WIDE)
                l1 = tl.where(tied, l1_c, l1)
                l2 = tl.where(tied, l2_c, l2)
                norm = tl.where(tied, norm_c, norm)
        term = tl.where(l2 > 0.0, l1 * inverse_root(l2, WIDE), 1.0)
        size = norm * inverse_root(norm, WIDE)
        value = size / tl.where(factor > 0.0, factor, 1.0)
        wide = back.to(tl.float64)
        # Where nothing is left but a corner, the dual value is that of its entry above threshold.
        value = tl.where(factor == 0.0, top.to(tl.float64) - mu * beta, value.to(tl.float64) * wide)
        terms += tl.where(rows, term, 0.0)
        primal += tl.where(rows, size, 0.0).to(tl.float64) * wide
        dual += tl.where(rows, value, 0.0)
    tl.store(result + TERMS, beta * tl.sum(terms.to(tl.float64), 0))
    tl.store(result + PRIMAL, tl.sum(primal, 0))
    tl.store(result + DUAL, tl.sum(dual, 0))


@triton.jit
def _share_among_ties(address, out, offsets, tied, length, step, dtype, low_mu, high_mu, alpha,
                   beta, top, scale, back, R: tl.constexpr, C: tl.constexpr,
                   DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """Write the corners of a tile that have several largest entries. Rare, so simple.

    In place, those are what is there by now, and zeros.
    """
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    _, m, where = count_ties(address, offsets, tied, length, step, dtype, R, C, DTYPES, WIDE)
    main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top, scale)
    cols = tl.arange(0, C)
    l1 = tl.zeros([R, C], FLOAT)
    l2 = tl.zeros([R, C], FLOAT)
    norm = tl.zeros([R, C], FLOAT)
    for k in range(0, length, C):
        entries = k + cols
        mask = tied[:, None] & (entries < length)[None, :]
        at = offsets[:, None] + (entries * step)[None, :]
        x = load_values(address, at, mask, dtype, False, DTYPES, WIDE)
        entry = entries[None, :] + tl.zeros([R, C], tl.int32)
        z = _shared_entries(tl.abs(x), top, entry, where, main.to(FLOAT), others.to(FLOAT), WIDE)
        z = tl.where(mask, z, 0.0)
        answer = _signed(x, z, back[:, None])
        rounded = store_values(out, at, answer, mask, dtype, False, DTYPES)
        y = tl.where(mask, tl.abs(rounded) * scale[:, None], 0.0)
        l1 += y
        l2 += y * y
        norm += z * z
    return tl.sum(l1, 1), tl.sum(l2, 1), tl.sum(norm, 1)


@triton.jit
def split_write(table, vector, first, end, mu, keep, low_mu, high_mu, alpha, value, result,
                C: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr,
                IN_PLACE: tl.constexpr):
    """Write steps ``first`` to ``end`` of one vector."""
    FLOAT: tl.constexpr = tl.float64 if WIDE else tl.float32
    EXACT: tl.constexpr = DTYPES == FLOAT64 if WIDE else DTYPES == FLOAT32
    FOLD: tl.constexpr = 4 if ALIGNED else 1
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype = tl.load(table + DTYPE)
    item = tl.load(table + ITEM)
    if ALIGNED:
        length = tl.multiple_of(length, 8)
    beta = 1.0 / (tl.sqrt(length.to(tl.float64)) - 1.0)
    top, factor = tl.load(value), tl.load(value + 1)
    factor = tl.where(keep != 0, 1.0, factor)
    mu = tl.where(keep != 0, 0.0, mu)
    m, where = tl.load(value + 2), tl.load(value + 3)
    one = tl.full([1], 1.0, FLOAT)
    scale, back = power_of_two(one * top.to(FLOAT), WIDE)
    high, low = split_threshold(mu * beta * scale.to(tl.float64), BEYOND_TWO, WIDE)
    main, others = _corner_values(m, low_mu, high_mu, alpha, beta, top, scale)
    main, others = main.to(FLOAT), others.to(FLOAT)
    tied_from = one * top.to(FLOAT) * (1.0 - 4.44e-16 if WIDE else 1.0)
    # What is kept has threshold 0 and factor 1, and needs no store where it is.
    until = tl.where(keep != 0, 0, length) if IN_PLACE else length
    corner = factor == 0.0
    cols = tl.arange(0, C)
    l1 = tl.zeros([1, C // FOLD], FLOAT)
    l2 = tl.zeros([1, C // FOLD], FLOAT)
    norm = tl.zeros([1, C // FOLD], FLOAT)
    skip = vector * tl.load(table + STRIDE) * item
    address = tl.load(table + ADDRESS) + skip
    out = tl.load(table + OUT) + skip
    for k in tl.range(first, end, num_stages=STAGES):
        place, goal = address + k * C * item, out + k * C * item
        mask = k * C + cols < length
        x = load_values(place, cols, mask, dtype, ALIGNED, DTYPES, WIDE)
        c = tl.abs(x)
        z = tl.maximum(c * scale - high - low, 0.0) * factor.to(FLOAT)
        if corner:
            entry = k * C + cols.to(tl.int64)
            lone = tl.where(entry.to(tl.float64) == where, main, others)
            z = tl.where((c >= tied_from) & mask, lone, 0.0)
        answer = _signed(x, z, back)
        if not IN_PLACE:
            answer = tl.where(keep != 0, x, answer)
        rounded = store_values(goal, cols, answer, k * C + cols < until, dtype, ALIGNED, DTYPES)
        y = tl.abs(rounded) * scale
        l1 += folded(y, 1, C, FOLD)
        l2 += folded(y * y, 1, C, FOLD)
        if not EXACT:
            norm += folded(z * z, 1, C, FOLD)
    tl.store(result + TERMS, whole(l1))
    tl.store(result + PRIMAL, whole(l2))
    tl.store(result + DUAL, whole(l2 if EXACT else norm))
