"""Compiled loops of the numba kernel: the three sums, the entries that may still matter, the write.

Rows come as one flat, contiguous stretch of memory in which vector i starts at i·pitch. A vector
longer than a segment is summed up segment by segment, so that two cores can share it.

float32 data is summed in float32, but never more than CHUNK entries before the partial sum moves to
float64, and a threshold is split in two float32 numbers, so that |c| − t is exact near the
threshold: twice the SIMD lanes at an error far below that of rounding the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..layout import BIG


def compiled(**options: Any) -> Any:
    def compile_lazily(function: Any) -> Any:
        try:
            return njit(cache=True, nogil=True, error_model="numpy", **options)(function)
        except RuntimeError:  # no folder to keep compiled code in: compile in every process
            return njit(nogil=True, error_model="numpy", **options)(function)

    return compile_lazily


# NaNs must survive (they are how bad input is found), so only the order of sums is set free.
_jit = compiled(fastmath={"reassoc", "contract", "nsz"})
_exact_jit = compiled()
_finite_jit = compiled(fastmath={"nnan", "nsz"})  # for data that was found to be finite
_inlined_jit = compiled(forceinline=True, fastmath=False)  # unsaid, it would inherit
CHUNK = 256  # entries of a row summed in the data's own precision
WIDE = 256  # columns of four lines that are looked at together
ZERO, ONE, SHIFT = np.uint64(0), np.uint64(1), np.uint64(61)
# 2**8j times this number has j in its highest three bits.
PLACES = np.uint64(sum(j << (61 - 8 * j) for j in range(8)))


@_jit
def newton(  # type: ignore[no-untyped-def]
    values, mu, start, most, level, tolerance, least, largest, rate, beta, s, q, excess
):
    """Total and slope at μ for a matrix of magnitudes; then Newton's steps from there in one call.

    The second point is ``start`` where that is positive. Returns the last point, the total and the
    slope at the first, how many sums of squares were out of range there, how many points there were
    (at most ``most``), and the largest sum of squares at the first. One function and short, so that
    the first call of a process is soon compiled.
    """
    rows, n = values.shape
    left, right = mu, np.inf
    outside = points = 0
    first = first_slope = top = 0.0
    while True:
        total = slope = 0.0
        t = mu * rate
        for i in range(rows):
            s1 = s2 = s0 = 0.0
            for j in range(n):
                d = max(values[i, j] - t, 0.0)
                excess[i, j] = d
                s1 += d
                s2 += d * d
                s0 += d > 0.0
            s[i], q[i] = s1, s2
            if points == 0:
                outside += not (least <= s2 < largest)
                top = max(top, s2)
            if s2 > 0.0:
                inverse = 1.0 / np.sqrt(s2)
                term = s1 * inverse
                total += term
                slope += (term * term - s0) * inverse
            else:
                total += 1.0
        total *= beta
        slope *= beta * rate
        if points == 0:
            first, first_slope = total, slope
        elif total > level:
            left = mu
        else:
            right = mu
        points += 1
        if points >= most or abs(total - level) <= tolerance or not slope < 0.0:
            break
        following = start if points == 1 and start > 0.0 else mu - (total - level) / slope
        if not left < following < right:
            break
        mu = following
    return mu, total, slope, first, first_slope, outside, points, top


@_exact_jit
def sums_of_weighted(values, weights, threshold, s, q, n, excess):  # type: ignore[no-untyped-def]
    """The three sums and the excess of every vector values[a, :, b] with weights."""
    for a in range(values.shape[0]):
        for b in range(values.shape[2]):
            t = threshold[a, b]
            s1 = s2 = s0 = 0.0
            for j in range(values.shape[1]):
                w = weights[a, j, b]
                d = values[a, j, b] - t * w
                d = d if d > 0.0 else 0.0
                excess[a, j, b] = d
                s1 += d * w
                s2 += d * d
                s0 += w * w if d > 0.0 else 0.0
            s[a, b], q[a, b], n[a, b] = s1, s2, s0


@_inlined_jit
def _over(v, hi, tail):  # type: ignore[no-untyped-def]
    """|c| − t with t = hi + tail; compiled strictly, or the two would be added up beforehand."""
    return (v - hi) - tail


@_jit
def marked(words, some, found):  # type: ignore[no-untyped-def]
    """Where the bytes that are 1 lie, into ``found``; returns how many there are.

    Few of the words of eight bytes are not zero. They are listed without a branch, for a branch
    would be mispredicted at nearly every one of them, which costs as much as reading 50 entries.
    """
    m = n = 0
    for w in range(len(words)):
        some[m] = w
        m += words[w] != ZERO
    for i in range(m):
        word = words[some[i]]
        while word != ZERO:
            lowest = word & (~word + ONE)
            word ^= lowest
            found[n] = 8 * some[i] + np.int64((lowest * PLACES) >> SHIFT)
            n += 1
    return n


@_jit
def scan_rows(  # type: ignore[no-untyped-def]
    flat, one, pitch, n, piece, pieces, first, last, low, high, rest, step,
    s, q, count, band, offset, held, begin, end,
):  # fmt: skip
    """Sums over the entries above ``high``, and a list of those between ``low`` and ``high``.

    Returns the number of entries in the list; beyond its end they are counted but not kept.
    """
    zero = one - one
    flags = np.zeros(CHUNK, np.uint8)
    words, some, found = flags.view(np.uint64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    k = begin
    for segment in range(first, last):
        vector = segment // pieces
        start = vector * pitch + (segment - vector * pieces) * piece
        stop = min(start + piece, vector * pitch + n)
        lo, hi, tail = low[vector * step], high[vector * step], rest[vector * step]
        s1 = s2 = s0 = 0.0
        offset[segment] = k
        for a in range(start, stop, CHUNK):
            # A slice, since LLVM vectorises only what it can prove to need no wrapping index.
            line = flat[a : min(a + CHUNK, stop)]
            x1 = x2 = x0 = zero
            for j in range(len(line)):
                v = abs(line[j])
                d = _over(v, hi, tail)
                flags[j] = (v > lo) & (d <= zero)
                x0 += one if d > zero else zero
                d = zero if zero > d else d  # a NaN stays: bad input shows in the sum
                x1 += d
                x2 += d * d
            s1 += x1
            s2 += x2
            s0 += x0
            if lo < hi:
                used = (len(line) + 7) // 8
                for j in range(len(line), 8 * used):
                    flags[j] = 0
                for i in range(marked(words[:used], some, found)):
                    band[min(k, end - 1)] = abs(line[found[i]])
                    k += 1
        s[segment], q[segment], count[segment] = s1, s2, s0
        held[segment] = k - offset[segment]
    return k


@_jit
def sums_of_band(  # type: ignore[no-untyped-def]
    first, last, pieces, mu, mu_high, rate, beta, step, s, q, count, band, offset, held, factor
):
    """Σ βs/√q, its slope, Σ xᵀ|c|, Σ √q at μ, from the sums at ``mu_high`` and the entries below.

    Then the length of the longest answer, and how many squares were too small to be trusted.

    Moving a threshold down adds positive terms only, so nothing cancels. ``factor`` is what the
    excess of each vector has to be multiplied by in the answer, 0 where nothing is left of it.
    """
    total = slope = primal = value = longest = 0.0
    faint = 0
    for vector in range(first, last):
        share, b = rate[vector * step], beta[vector * step]
        t = min(mu * share, BIG)
        down = min(mu_high * share, BIG) - t
        s1 = s2 = s0 = 0.0
        for segment in range(vector * pieces, (vector + 1) * pieces):
            s1 += s[segment] + count[segment] * down
            s2 += q[segment] + down * (2.0 * s[segment] + count[segment] * down)
            s0 += count[segment]
            entries = band[offset[segment] : offset[segment] + held[segment]]
            for j in range(len(entries)):
                d = entries[j] - t
                above = 1.0 if d > 0.0 else 0.0
                d *= above
                s1 += d
                s2 += d * d
                s0 += above
        faint += s1 > 0.0 and s2 < 1e-200
        if s2 > 0.0:
            root = np.sqrt(s2)
            term = s1 / root
            total += b * term
            slope += b * share * (term * term - s0) / root
            length = (s2 + t * s1) / root
            longest = max(longest, length)
            primal += length * (b / share)
            value += root * (b / share)
            factor[vector] = 1.0 + t * s1 / s2
        else:
            total += b
            factor[vector] = 0.0
    return total, slope, primal, value, longest, faint


@_finite_jit
def largest_of_rows(flat, one, pitch, n, vectors, at):  # type: ignore[no-untyped-def]
    """Where the largest entry of each of these vectors is, the first of equal ones."""
    for i in range(len(vectors)):
        line = flat[vectors[i] * pitch : vectors[i] * pitch + n]
        best, begin = -one, 0
        for a in range(0, n, WIDE):
            some = line[a : a + WIDE]
            top = one - one
            for j in range(len(some)):
                top = max(top, abs(some[j]))
            if top > best:
                best, begin = top, a
        while abs(line[begin]) != best:
            begin += 1
        at[i] = begin


@_exact_jit
def write_rows(  # type: ignore[no-untyped-def]
    flat, out, one, pitch, out_pitch, n, piece, pieces, first, last, high, rest, step, factor
):
    """z = factor · sign(c) · [|c| − t]₊, rounded once.

    In-place calls write where they read, which LLVM would not vectorise: hence the copy of a chunk.
    """
    zero = one - one
    chunk = np.empty(WIDE, flat.dtype)
    for segment in range(first, last):
        vector = segment // pieces
        skip = (segment - vector * pieces) * piece
        length = min(piece, n - skip)
        line = flat[vector * pitch + skip : vector * pitch + skip + length]
        target = out[vector * out_pitch + skip : vector * out_pitch + skip + length]
        hi, tail, f = high[vector * step], rest[vector * step], factor[vector]
        for a in range(0, length, WIDE):
            some, there = line[a : a + WIDE], target[a : a + WIDE]
            for j in range(len(some)):
                chunk[j] = some[j]
            for j in range(len(some)):
                c = chunk[j]
                d = (abs(c) - hi) - tail
                d = d * f if d > zero else zero
                there[j] = d if c >= zero else zero - d
