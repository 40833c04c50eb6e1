"""Sweeps over the rows of one factor: the inner loop of every HALS-like update.

A factor is stored with its vectors as rows: F is r × n, and the loss ½‖X − ‥‖² depends on it only
through the cross products C (r × n) and the Gram matrix G (r × r) of the other factor. Row k alone
has its minimum at c = F_k + (C_k − G_k F)/G_kk, and what is written is::

    F_k = gain_k · [c − shift_k · w]₊

With shift 0 and gain 1 that is HALS; with the values that belong to a multiplier it is the same
row minimised under a Hoyer constraint. The columns of F never meet in a sweep, so it may run on any
block of columns by itself, which is what makes data in pieces give the same result as in one.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from ..kernels.pool import cores, run
from .arrays import is_tensor

# Columns per block: r × 128 doubles stay in the second-level cache, and rows are long enough to
# keep the vector units busy.
BLOCK = 128


def sweep(
    factor: Any,
    cross: Any,
    gram: Any,
    *,
    sweeps: int,
    delta: float = 0.0,
    shift: Any = None,
    gain: Any = None,
    weights: Any = None,
    minima: Any = None,
) -> None:
    """Sweep over the rows of ``factor`` in place.

    Parameters
    ----------
    factor, cross, gram : numpy arrays or torch tensors
        F, C and G as above, in one dtype.
    sweeps : int
        How often to go over all rows.
    delta : float
        A block of columns is left early once a sweep moves it by less than this fraction of its
        first sweep (squared, in the metric of G): the stopping rule of A-HALS.
    shift, gain : like ``factor``, of length r, optional
        See above; 0 and 1 by default.
    weights : array of shape (1, n) or (r, n), optional
        The w above; ones by default.
    minima : like ``factor``, optional
        Filled with the unconstrained minimum c of each row, as met in the last sweep.
    """
    if is_tensor(factor):
        if factor.device.type != "cpu":
            _sweep_device(factor, cross, gram, sweeps, delta, shift, gain, weights, minima)
            return
        # The same memory as arrays.
        factor, cross, gram, shift, gain, weights, minima = (
            x.numpy() if is_tensor(x) else x
            for x in (factor, cross, gram, shift, gain, weights, minima)
        )
    r, kind = len(factor), factor.dtype
    call = partial(
        _compiled_sweep(),
        factor,
        cross,
        gram,
        np.zeros(r, kind) if shift is None else np.asarray(shift, kind),
        np.ones(r, kind) if gain is None else np.asarray(gain, kind),
        np.ones((1, 1), kind) if weights is None else weights,
        weights is not None,
        sweeps,
        delta,
        np.empty((0, 0), kind) if minima is None else minima,
    )
    run([partial(call, begin, end) for begin, end in _shares(factor.shape[1])])


def _sweep_device(
    factor: Any,
    cross: Any,
    gram: Any,
    sweeps: int,
    delta: float,
    shift: Any,
    gain: Any,
    weights: Any,
    minima: Any,
) -> None:
    from .sweeps_tensor import sweep_tensor, system_of

    r = len(factor)
    system = system_of(
        cross,
        gram,
        factor.new_zeros(r) if shift is None else shift,
        factor.new_ones(r) if gain is None else gain,
        weights,
    )
    sweep_tensor(
        factor, system, gram.diagonal(), sweeps=sweeps, delta=delta, block=BLOCK, minima=minima
    )


def _shares(n: int) -> list[tuple[int, int]]:
    """Columns for each core, in whole blocks; few columns are not worth a second thread."""
    share = max(4, -(-n // (BLOCK * cores()))) * BLOCK
    return [(begin, min(begin + share, n)) for begin in range(0, n, share)]


@cache
def _compiled_sweep() -> Any:
    from ..kernels._loops import _compiled as compiled

    return compiled()(_sweep_array)


def _sweep_array(
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
    begin: Any,
    end: Any,
) -> None:
    r = factor.shape[0]
    for start in range(begin, end, BLOCK):
        stop = min(end, start + BLOCK)
        width = stop - start
        part = factor[:, start:stop].copy()
        c = np.empty(width, factor.dtype)
        first = 0.0
        for s in range(sweeps):
            moved = 0.0
            for k in range(r):
                own = gram[k, k]
                row = part[k]
                c[:] = cross[k, start:stop]
                if own > 0:
                    g = gram[k]
                    # Eight rows at a time: one load and store of c for eight multiply-adds.
                    j = 0
                    while j + 7 < r:
                        g0, g1, g2, g3 = g[j], g[j + 1], g[j + 2], g[j + 3]
                        g4, g5, g6, g7 = g[j + 4], g[j + 5], g[j + 6], g[j + 7]
                        p0, p1, p2, p3 = part[j], part[j + 1], part[j + 2], part[j + 3]
                        p4, p5, p6, p7 = part[j + 4], part[j + 5], part[j + 6], part[j + 7]
                        for q in range(width):
                            c[q] -= ((g0 * p0[q] + g1 * p1[q]) + (g2 * p2[q] + g3 * p3[q])) + (
                                (g4 * p4[q] + g5 * p5[q]) + (g6 * p6[q] + g7 * p7[q])
                            )
                        j += 8
                    while j < r:
                        g0, p0 = g[j], part[j]
                        for q in range(width):
                            c[q] -= g0 * p0[q]
                        j += 1
                    for q in range(width):
                        c[q] = row[q] + c[q] / own
                else:
                    c[:] = row
                if minima.shape[0] > 0:
                    minima[k, start:stop] = c
                t, rho = shift[k], gain[k]
                if weighted:
                    w = weights[k if weights.shape[0] > 1 else 0, start:stop]
                    for q in range(width):
                        c[q] = rho * max(c[q] - t * w[q], 0.0)
                else:
                    for q in range(width):
                        c[q] = rho * max(c[q] - t, 0.0)
                change = 0.0
                for q in range(width):
                    change += (c[q] - row[q]) * (c[q] - row[q])
                    row[q] = c[q]
                moved += change * own
            if s == 0:
                first = moved
            if moved <= delta * first:
                break
        factor[:, start:stop] = part
