"""The Triton kernel's inner part: the three sums of a tile of vectors, and the write of one.

A tile is R vectors × C entries held in registers. A vector of at most C entries is *single*: its
largest entry is known before anything is summed, and nothing about it is ever stored. Longer ones
are walked in steps of C; their largest entry and their factor wait in two slots between passes. A
*split* vector is so long that several programs walk parts of it.

Every vector is scaled by the power of two that brings its largest entry to between 1 and 2, so no
square leaves the range of the type. Thresholds are pairs (high, low) of floats: the difference
|c| − t then keeps its leading digits where t is near the largest entry.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32, BFLOAT16, FLOAT16, FLOAT64 = (tl.constexpr(1 << i) for i in range(4))
# Unscaled sums (the first pass over a long vector) can be trusted between these.
LEAST, MOST = tl.constexpr(1e-12), tl.constexpr(1e12)
NOWHERE = tl.constexpr(1 << 62)


@triton.jit
def load_values(address, offsets, mask, dtype, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """Load entries of whatever type the tensor has; a set of one type needs no branch."""
    if DTYPES == FLOAT32:
        x = tl.load(address.to(tl.pointer_type(tl.float32)) + offsets, mask=mask, other=0.0)
    elif DTYPES == BFLOAT16:
        x = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + offsets, mask=mask, other=0.0)
    elif DTYPES == FLOAT16:
        x = tl.load(address.to(tl.pointer_type(tl.float16)) + offsets, mask=mask, other=0.0)
    elif DTYPES == FLOAT64:
        x = tl.load(address.to(tl.pointer_type(tl.float64)) + offsets, mask=mask, other=0.0)
    else:
        x = tl.zeros(offsets.shape, tl.float64 if WIDE else tl.float32)
        if dtype == FLOAT32:
            at32 = address.to(tl.pointer_type(tl.float32)) + offsets
            x = tl.load(at32, mask=mask, other=0.0).to(x.dtype)
        elif dtype == BFLOAT16:
            at16 = address.to(tl.pointer_type(tl.bfloat16)) + offsets
            x = tl.load(at16, mask=mask, other=0.0).to(x.dtype)
        elif dtype == FLOAT16:
            half = address.to(tl.pointer_type(tl.float16)) + offsets
            x = tl.load(half, mask=mask, other=0.0).to(x.dtype)
        else:
            at64 = address.to(tl.pointer_type(tl.float64)) + offsets
            x = tl.load(at64, mask=mask, other=0.0).to(x.dtype)
    return x.to(tl.float64 if WIDE else tl.float32)


@triton.jit
def store_values(address, offsets, x, mask, dtype, DTYPES: tl.constexpr):
    """Store entries and return them as they were rounded."""
    rounded = x
    if dtype == FLOAT32:
        if FLOAT32 & DTYPES:
            rounded = x.to(tl.float32).to(x.dtype)
            tl.store(address.to(tl.pointer_type(tl.float32)) + offsets, x.to(tl.float32), mask=mask)
    elif dtype == BFLOAT16:
        if BFLOAT16 & DTYPES:
            y = x.to(tl.float32).to(tl.bfloat16)
            rounded = y.to(tl.float32).to(x.dtype)
            tl.store(address.to(tl.pointer_type(tl.bfloat16)) + offsets, y, mask=mask)
    elif dtype == FLOAT16:
        if FLOAT16 & DTYPES:
            z = x.to(tl.float32).to(tl.float16)
            rounded = z.to(tl.float32).to(x.dtype)
            tl.store(address.to(tl.pointer_type(tl.float16)) + offsets, z, mask=mask)
    else:
        if FLOAT64 & DTYPES:
            tl.store(address.to(tl.pointer_type(tl.float64)) + offsets, x.to(tl.float64), mask=mask)
    return rounded


@triton.jit
def power_of_two(top, WIDE: tl.constexpr):
    """The power of two that brings ``top`` to between 1 and 2; 1 for zeros and non-finite ones."""
    if WIDE:
        exponent = (top.to(tl.int64, bitcast=True) >> 52) & 0x7FF
        exponent = tl.minimum(tl.maximum(exponent, 24), 2020)
        scale = ((2046 - exponent) << 52).to(tl.float64, bitcast=True)
    else:
        exponent = (top.to(tl.int32, bitcast=True) >> 23) & 0xFF
        exponent = tl.minimum(tl.maximum(exponent, 2), 252)
        scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    usual = (top > 0.0) & (top < float("inf"))
    return tl.where(usual, scale, tl.full(top.shape, 1.0, top.dtype))


@triton.jit
def split_threshold(t, WIDE: tl.constexpr):
    """A float64 threshold as (high, low) in the working type; beyond 4 nothing is left anyway."""
    t = tl.minimum(t, 4.0)
    if WIDE:
        return t, t - t
    high = t.to(tl.float32)
    return high, (t - high.to(tl.float64)).to(tl.float32)


@triton.jit
def split_unscaled(t, WIDE: tl.constexpr):
    """The same for vectors in their own scale."""
    if WIDE:
        return t, t - t
    t = tl.minimum(t, 1e30)
    high = t.to(tl.float32)
    return high, (t - high.to(tl.float64)).to(tl.float32)


@triton.jit
def propagating_max(a, b):
    """The larger one; a NaN stays a NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def finished_sums(s, q, n, beta, scale, rows):
    """Term and slope of vectors from their three sums: float64, in units of the multiplier."""
    s, q, n = s.to(tl.float64), q.to(tl.float64), n.to(tl.float64)
    live = q > 0.0
    inverse = 1.0 / tl.sqrt(tl.where(live, q, 1.0))
    term = tl.where(live, s * inverse, 1.0)
    slope = tl.where(live, (term * term - n) * inverse, 0.0)
    wide = scale.to(tl.float64)
    return tl.where(rows, beta * term, 0.0), tl.where(rows, beta * beta * slope * wide, 0.0)


@triton.jit
def growth_factor(t, s, q):
    """z = factor · [|c| − t]₊; 0 marks a vector of which nothing is left: a corner."""
    s, q = s.to(tl.float64), q.to(tl.float64)
    live = q > 0.0
    return tl.where(live, 1.0 + t * s / tl.where(live, q, 1.0), 0.0)
