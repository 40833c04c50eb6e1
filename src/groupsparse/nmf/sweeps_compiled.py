"""The compiled loops: those of :mod:`groupsparse.nmf.sweeps`, four rows at a time.

A row needs the products of its entries of G with all other rows. Row after row would load the whole
factor for each of them. So the rows go in fours: what the others, four of them at a time again,
take from the four is subtracted together, and an entry that is loaded is used four times. Among
themselves the four follow each other as ever, so the order of a sweep is what it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels._loops import compiled

FOUR = 4

# A product may go into a sum without being rounded, on full vectors and on their rests alike: a
# factor that is swept in pieces stays the same to the bit.
inlined = compiled(forceinline=True, fastmath={"contract", "nsz"})
summed = compiled(fastmath={"reassoc", "contract", "nsz"})


def in_fours(gram: Any) -> Any:
    """G with rows and columns of zeros, so that its rows are a multiple of four."""
    r = len(gram)
    size = -(-r // FOUR) * FOUR
    padded = np.zeros((size, size), gram.dtype)
    padded[:r, :r] = gram
    return padded


@inlined
def _subtract(c: Any, gram: Any, part: Any, k: Any, j: Any) -> None:
    """From what is left for rows k … k+3 take the products with rows j … j+3."""
    a0, a1, a2, a3 = gram[k, j], gram[k, j + 1], gram[k, j + 2], gram[k, j + 3]
    k += 1
    b0, b1, b2, b3 = gram[k, j], gram[k, j + 1], gram[k, j + 2], gram[k, j + 3]
    k += 1
    d0, d1, d2, d3 = gram[k, j], gram[k, j + 1], gram[k, j + 2], gram[k, j + 3]
    k += 1
    e0, e1, e2, e3 = gram[k, j], gram[k, j + 1], gram[k, j + 2], gram[k, j + 3]
    p0, p1, p2, p3 = part[j], part[j + 1], part[j + 2], part[j + 3]
    c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
    for q in range(c.shape[1]):
        x0, x1, x2, x3 = p0[q], p1[q], p2[q], p3[q]
        c0[q] -= (a0 * x0 + a1 * x1) + (a2 * x2 + a3 * x3)
        c1[q] -= (b0 * x0 + b1 * x1) + (b2 * x2 + b3 * x3)
        c2[q] -= (d0 * x0 + d1 * x1) + (d2 * x2 + d3 * x3)
        c3[q] -= (e0 * x0 + e1 * x1) + (e2 * x2 + e3 * x3)


@inlined
def _minimum(c: Any, row: Any, g: Any, four: Any, own: Any) -> None:
    """Turn what the other rows left into the minimum of this one; ``four`` holds its own four."""
    g0, g1, g2, g3 = g[0], g[1], g[2], g[3]
    p0, p1, p2, p3 = four[0], four[1], four[2], four[3]
    for q in range(len(c)):
        products = (g0 * p0[q] + g1 * p1[q]) + (g2 * p2[q] + g3 * p3[q])
        c[q] = row[q] + (c[q] - products) / own


@inlined
def _shrink(c: Any, weights: Any, weighted: Any, t: Any, rho: Any) -> None:
    """gain·[c − shift·w]₊ in place."""
    zero = c.dtype.type(0)
    if weighted:
        for q in range(len(c)):
            c[q] = rho * max(c[q] - t * weights[q], zero)
    else:
        for q in range(len(c)):
            c[q] = rho * max(c[q] - t, zero)


@summed
def _squared_distance(c: Any, row: Any) -> Any:
    total = 0.0
    for q in range(len(c)):
        total += (c[q] - row[q]) * (c[q] - row[q])
    return total


@compiled()
def sweep_columns(
    factor: Any,
    cross: Any,
    gram: Any,
    shift: Any,
    gain: Any,
    weights: Any,
    weighted: Any,
    sweeps: Any,
    delta: Any,
    minima: Any,
    block: Any,
    begin: Any,
    end: Any,
) -> None:
    """See :func:`groupsparse.nmf.sweeps.sweep`; ``gram`` comes from :func:`in_fours`."""
    r = len(factor)
    for start in range(begin, end, block):
        stop = min(end, start + block)
        part = np.zeros((len(gram), stop - start), factor.dtype)
        part[:r] = factor[:, start:stop]
        left = np.zeros((FOUR, stop - start), factor.dtype)
        first = 0.0
        for s in range(sweeps):
            moved = 0.0
            for k0 in range(0, r, FOUR):
                rows = range(k0, min(k0 + FOUR, r))
                for k in rows:
                    left[k - k0] = cross[k, start:stop]
                for j0 in range(0, r, FOUR):
                    if j0 != k0:
                        _subtract(left, gram, part, k0, j0)
                for k in rows:
                    c, row, own = left[k - k0], part[k], gram[k, k]
                    if own > 0:
                        _minimum(c, row, gram[k, k0 : k0 + FOUR], part[k0 : k0 + FOUR], own)
                    else:
                        c[:] = row
                    if len(minima) > 0:
                        minima[k, start:stop] = c
                    w = weights[k if len(weights) > 1 else 0, start:stop] if weighted else c
                    _shrink(c, w, weighted, shift[k], gain[k])
                    if delta > 0:
                        moved += own * _squared_distance(c, row)
                    row[:] = c
            if s == 0:
                first = moved
            if delta > 0 and moved <= delta * first:
                break
        factor[:, start:stop] = part[:r]


@compiled()
def go_beyond(updated: Any, before: Any, momentum: Any, ahead: Any) -> None:
    """[updated + momentum (updated − before)]₊ in one look at both."""
    zero = ahead.dtype.type(0)
    for k in range(len(updated)):
        one, two, out = updated[k], before[k], ahead[k]
        for q in range(len(one)):
            out[q] = max(one[q] + momentum * (one[q] - two[q]), zero)
