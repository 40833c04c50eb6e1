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
# No threshold matters from here on: in a vector's own scale, and in that of its largest entry.
BEYOND, BEYOND_TWO = tl.constexpr(1e30), tl.constexpr(4.0)


@triton.jit
def typed(address, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    """A pointer from an address; only with the hint are loads and stores 16 bytes wide."""
    pointer = address.to(tl.pointer_type(dtype))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _load(address, offsets, mask, dtype: tl.constexpr, ALIGNED: tl.constexpr, REAL: tl.constexpr):
    return tl.load(typed(address, dtype, ALIGNED) + offsets, mask=mask, other=0.0).to(REAL)


@triton.jit
def load_values(address, offsets, mask, dtype, ALIGNED: tl.constexpr, DTYPES: tl.constexpr,
                WIDE: tl.constexpr):
    """Load entries of whatever type the tensor has; a set of one type needs no branch."""
    REAL: tl.constexpr = tl.float64 if WIDE else tl.float32
    if DTYPES == FLOAT32:
        x = _load(address, offsets, mask, tl.float32, ALIGNED, REAL)
    elif DTYPES == BFLOAT16:
        x = _load(address, offsets, mask, tl.bfloat16, ALIGNED, REAL)
    elif DTYPES == FLOAT16:
        x = _load(address, offsets, mask, tl.float16, ALIGNED, REAL)
    elif DTYPES == FLOAT64:
        x = _load(address, offsets, mask, tl.float64, ALIGNED, REAL)
    else:
        x = tl.zeros(offsets.shape, REAL)
        if dtype == FLOAT32:
            x = _load(address, offsets, mask, tl.float32, ALIGNED, REAL)
        elif dtype == BFLOAT16:
            x = _load(address, offsets, mask, tl.bfloat16, ALIGNED, REAL)
        elif dtype == FLOAT16:
            x = _load(address, offsets, mask, tl.float16, ALIGNED, REAL)
        else:
            x = _load(address, offsets, mask, tl.float64, ALIGNED, REAL)
    return x


@triton.jit
def store_values(address, offsets, x, mask, dtype, ALIGNED: tl.constexpr, DTYPES: tl.constexpr):
    """Store entries and return them as they were rounded."""
    rounded = x
    if FLOAT32 & DTYPES:
        if dtype == FLOAT32:
            single = x.to(tl.float32)
            tl.store(typed(address, tl.float32, ALIGNED) + offsets, single, mask=mask)
            rounded = single.to(x.dtype)
    if BFLOAT16 & DTYPES:
        if dtype == BFLOAT16:
            brain = x.to(tl.float32).to(tl.bfloat16)
            tl.store(typed(address, tl.bfloat16, ALIGNED) + offsets, brain, mask=mask)
            rounded = brain.to(x.dtype)
    if FLOAT16 & DTYPES:
        if dtype == FLOAT16:
            half = x.to(tl.float32).to(tl.float16)
            tl.store(typed(address, tl.float16, ALIGNED) + offsets, half, mask=mask)
            rounded = half.to(x.dtype)
    if FLOAT64 & DTYPES:
        if dtype == FLOAT64:
            tl.store(typed(address, tl.float64, ALIGNED) + offsets, x.to(tl.float64), mask=mask)
    return rounded


@triton.jit
def exponent_of(top, WIDE: tl.constexpr):
    """The exponent bits of ``top``, within what can be undone; those of 1 for zeros."""
    usual = (top > 0.0) & (top < float("inf"))
    if WIDE:
        exponent = (top.to(tl.int64, bitcast=True) >> 52) & 0x7FF
        exponent = tl.where(usual, tl.minimum(tl.maximum(exponent, 24), 2022), 1023)
    else:
        exponent = (top.to(tl.int32, bitcast=True) >> 23) & 0xFF
        exponent = tl.where(usual, tl.minimum(tl.maximum(exponent, 2), 252), 127)
    return exponent


@triton.jit
def power(exponent, WIDE: tl.constexpr):
    """The power of two with these exponent bits."""
    if WIDE:
        found = (exponent << 52).to(tl.float64, bitcast=True)
    else:
        found = (exponent << 23).to(tl.float32, bitcast=True)
    return found


@triton.jit
def power_of_two(top, WIDE: tl.constexpr):
    """The power of two that brings ``top`` to between 1 and 2, and its inverse; 1 for zeros."""
    exponent = exponent_of(top, WIDE)
    return power((2046 if WIDE else 254) - exponent, WIDE), power(exponent, WIDE)


@triton.jit
def split_threshold(t, limit: tl.constexpr, WIDE: tl.constexpr):
    """A float64 threshold as (high, low) in the working type; nothing is left from ``limit`` on."""
    t = tl.minimum(t, limit)
    if WIDE:
        high, low = t, t - t
    else:
        high = t.to(tl.float32)
        low = (t - high.to(tl.float64)).to(tl.float32)
    return high, low


@triton.jit
def split_mantissa(t, WIDE: tl.constexpr):
    """A float64 threshold as (high, low) between 1 and 2, and its exponent: split only once.

    A power of two moves it into the scale of any vector then, without float64 and without rounding.
    """
    bits = t.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) & 0x7FF
    one = ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).to(tl.float64, bitcast=True)
    high, low = split_threshold(tl.where(exponent > 0, one, 0.0), 2.0, WIDE)
    exponent -= 1023
    return high, low, exponent if WIDE else exponent.to(tl.int32)


@triton.jit
def in_scale_of(exponent, high, low, raised, WIDE: tl.constexpr):
    """A split threshold in the scale of vectors with these exponent bits.

    From 4 on nothing is left of them, so larger ones are cut off there.
    """
    if WIDE:
        factor = power(tl.minimum(tl.maximum(raised - exponent + 2046, 1), 1025), True)
    else:
        factor = power(tl.minimum(tl.maximum(raised - exponent + 254, 1), 129), False)
    return high * factor, low * factor


@triton.jit
def propagating_max(a, b):
    """The larger one; a NaN stays a NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def folded(x, R: tl.constexpr, C: tl.constexpr, FOLD: tl.constexpr):
    """Sums of FOLD neighbours, which one thread holds: fewer registers wait between steps."""
    if FOLD > 1:
        x = tl.sum(tl.reshape(x, [R, C // FOLD, FOLD]), 2)
    return x


@triton.jit
def folded_max(x, R: tl.constexpr, C: tl.constexpr, FOLD: tl.constexpr):
    """The same for maxima."""
    if FOLD > 1:
        x = tl.reduce(tl.reshape(x, [R, C // FOLD, FOLD]), 2, propagating_max)
    return x


@triton.jit
def inverse_root(q, WIDE: tl.constexpr):
    """1/√q, and 0 where q is 0."""
    live = q > 0.0
    safe = tl.where(live, q, 1.0)
    if WIDE:
        inverse = 1.0 / tl.sqrt(safe)
    else:
        inverse = tl.rsqrt(safe)
        inverse *= 1.5 - 0.5 * safe * inverse * inverse
    return tl.where(live, inverse, 0.0)


@triton.jit
def finished_sums(s, q, n, t, WIDE: tl.constexpr):
    """Term S/√Q of each vector, its slope in t, and what its entries grow by.

    The factor makes z of the excess, z = factor · [|c| − t]₊; 0 marks a vector of which nothing is
    left. This runs once per vector in every thread that holds it, so it has no division.
    """
    inverse = inverse_root(q, WIDE)
    live = q > 0.0
    term = tl.where(live, s * inverse, 1.0)
    return term, (term * term - n) * inverse, tl.where(live, 1.0 + t * term * inverse, 0.0)
