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

from functools import partial
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
    from .sweeps_compiled import in_fours, sweep_columns

    r, kind = len(factor), factor.dtype
    call = partial(
        sweep_columns,
        factor,
        cross,
        in_fours(gram),
        np.zeros(r, kind) if shift is None else np.asarray(shift, kind),
        np.ones(r, kind) if gain is None else np.asarray(gain, kind),
        np.ones((1, 1), kind) if weights is None else weights,
        weights is not None,
        sweeps,
        delta,
        np.empty((0, 0), kind) if minima is None else minima,
        BLOCK,
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
