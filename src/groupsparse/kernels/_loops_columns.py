"""The loops of :mod:`._loops` for vectors that are columns, read line by line as memory lies."""

from __future__ import annotations

import numpy as np

from ._loops import WIDE, _exact_jit, _jit, _over, marked

LINES, TILE = 64, 4096  # lines and columns of a tile


@_jit
def scan_columns(  # type: ignore[no-untyped-def]
    cube, one, a, top, bottom, left, right, lo, hi, tail, s, q, count, band, owner, begin, end
):
    """:func:`~._loops.scan_rows` for cube[a, top:bottom, left:right], where a vector is a column.

    Adds to the sums. All columns have the same thresholds. Four lines are taken at a time, since
    loading and storing the running sums of every column is what costs here.
    """
    zero = one - one
    x1, x2, x0 = np.empty((3, TILE), cube.dtype)
    blank = np.zeros(TILE, cube.dtype)
    flags = np.zeros(4 * WIDE, np.uint8)
    f1, f2, f3, f4 = (
        flags[:WIDE],
        flags[WIDE : 2 * WIDE],
        flags[2 * WIDE : 3 * WIDE],
        flags[3 * WIDE :],
    )
    words, some = flags.view(np.uint64), np.empty(4 * WIDE, np.int64)
    found = np.empty(4 * WIDE, np.int64)
    k = begin
    for j in range(top, bottom, LINES):
        stop = min(j + LINES, bottom)
        for b in range(left, right, TILE):
            width = min(TILE, right - b)
            first = a * cube.shape[2] + b
            x1[:width] = zero
            x2[:width] = zero
            x0[:width] = zero
            for g in range(j, stop, 4):
                l1 = cube[a, g, b : b + width]
                l2 = cube[a, g + 1, b : b + width] if g + 1 < stop else blank[:width]
                l3 = cube[a, g + 2, b : b + width] if g + 2 < stop else blank[:width]
                l4 = cube[a, g + 3, b : b + width] if g + 3 < stop else blank[:width]
                for c in range(0, width, WIDE):
                    stretch = min(WIDE, width - c)
                    y1, y2, y0 = x1[c : c + stretch], x2[c : c + stretch], x0[c : c + stretch]
                    m1, m2 = l1[c : c + stretch], l2[c : c + stretch]
                    m3, m4 = l3[c : c + stretch], l4[c : c + stretch]
                    if stretch < WIDE:
                        flags[:] = 0
                    for i in range(stretch):
                        v1, v2, v3, v4 = abs(m1[i]), abs(m2[i]), abs(m3[i]), abs(m4[i])
                        d1, d2 = _over(v1, hi, tail), _over(v2, hi, tail)
                        d3, d4 = _over(v3, hi, tail), _over(v4, hi, tail)
                        f1[i] = (v1 > lo) & (d1 <= zero)
                        f2[i] = (v2 > lo) & (d2 <= zero)
                        f3[i] = (v3 > lo) & (d3 <= zero)
                        f4[i] = (v4 > lo) & (d4 <= zero)
                        n1 = one if d1 > zero else zero
                        n2 = one if d2 > zero else zero
                        n3 = one if d3 > zero else zero
                        n4 = one if d4 > zero else zero
                        d1 = zero if zero > d1 else d1  # a NaN stays: bad input shows in the sum
                        d2 = zero if zero > d2 else d2
                        d3 = zero if zero > d3 else d3
                        d4 = zero if zero > d4 else d4
                        y1[i] += (d1 + d2) + (d3 + d4)
                        y2[i] += (d1 * d1 + d2 * d2) + (d3 * d3 + d4 * d4)
                        y0[i] += (n1 + n2) + (n3 + n4)
                    if lo < hi:
                        for i in range(marked(words, some, found)):
                            line, at = found[i] // WIDE, b + c + found[i] % WIDE
                            e = min(k, end - 1)
                            band[e], owner[e] = abs(cube[a, g + line, at]), a * cube.shape[2] + at
                            k += 1
            for i in range(width):
                s[first + i] += x1[i]
                q[first + i] += x2[i]
                count[first + i] += x0[i]
    return k


@_jit
def sort_band(values, owner, held, offset, band):  # type: ignore[no-untyped-def]
    """Bring the entries of each vector together, in the order in which they were found."""
    held[:] = 0
    for e in range(len(owner)):
        held[owner[e]] += 1
    k = 0
    for vector in range(len(held)):
        offset[vector] = k
        k += held[vector]
    for e in range(len(owner)):
        band[offset[owner[e]]] = values[e]
        offset[owner[e]] += 1
    for vector in range(len(held)):
        offset[vector] -= held[vector]


@_exact_jit
def largest_of_columns(cube, vectors, best, at):  # type: ignore[no-untyped-def]
    """:func:`~._loops.largest_of_rows` for columns in ascending order, one line after the other."""
    width = cube.shape[2]
    first = 0
    while first < len(vectors):
        a = vectors[first] // width
        last = first
        while last < len(vectors) and vectors[last] < (a + 1) * width:
            last += 1
        inner = vectors[first:last] - a * width
        best[:] = -1
        for j in range(cube.shape[1]):
            line = cube[a, j]
            for i in range(len(inner)):
                v = abs(line[inner[i]])
                if v > best[i]:
                    best[i] = v
                    at[first + i] = j
        first = last


@_exact_jit
def write_columns(cube, out, one, a, top, bottom, left, right, hi, tail, factor):  # type: ignore[no-untyped-def]
    """:func:`~._loops.write_rows` for cube[a, top:bottom, left:right]."""
    zero = one - one
    chunk = np.empty(WIDE, cube.dtype)
    every = factor[a * cube.shape[2] + left : a * cube.shape[2] + right]
    for j in range(top, bottom):
        line, target = cube[a, j, left:right], out[a, j, left:right]
        for b in range(0, len(line), WIDE):
            some, there, f = line[b : b + WIDE], target[b : b + WIDE], every[b : b + WIDE]
            for i in range(len(some)):
                chunk[i] = some[i]
            for i in range(len(some)):
                c = chunk[i]
                d = (abs(c) - hi) - tail
                d = d * f[i] if d > zero else zero
                there[i] = d if c >= zero else zero - d
