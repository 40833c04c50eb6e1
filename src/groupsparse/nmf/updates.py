"""One update of one factor, for each of the algorithms.

An update is called with the factor F (r × n, vectors as rows), the cross products C (r × n) and the
Gram matrix G (r × r) of the other factor, and returns the new F; it never needs the data. What it
has to remember between calls, multipliers above all, it keeps itself. ``separable`` says whether
the columns of F may be updated in pieces.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, Protocol

import numpy as np

from .arrays import (
    Vector,
    as_vector,
    copy,
    empty_like,
    inner,
    is_tensor,
    like,
    on_host,
    row_squares,
    row_sums,
    wide,
)
from .constraints import Multiplier, Target
from .sweeps import sweep

# How much of the change of a multiplier goes into the next thresholds.
DAMPING = 0.25


class Update(Protocol):
    separable: bool

    def __call__(self, factor: Any, cross: Any, gram: Any) -> Any: ...


class Hals:
    """HALS: every row in turn set to its non-negative minimum (Gillis and Glineur, 2012)."""

    separable = True

    def __init__(self, sweeps: int, delta: float = 0.0) -> None:
        self.sweeps = sweeps
        self.delta = delta

    def __call__(self, factor: Any, cross: Any, gram: Any) -> Any:
        factor = copy(factor)
        sweep(factor, cross, gram, sweeps=self.sweeps, delta=self.delta)
        return factor


class FastGradient:
    """Nesterov's gradient steps, each followed by a projection (NeNMF: Guan et al., 2012).

    Without a target the projection is onto the non-negative factors. With one it is onto those that
    also meet the target (gspNMF, cspNMF); that set is not convex, so whenever a step raises the
    objective the momentum is dropped, and the best point seen is returned. Since the measure does
    not depend on the scale of a row, steps are made where G has a unit diagonal, and L is small.
    """

    def __init__(self, steps: int, target: Target | None = None) -> None:
        self.steps = steps
        self.target = target
        self.multiplier: Multiplier = 0.0
        self.separable = target is None

    def __call__(self, factor: Any, cross: Any, gram: Any) -> Any:
        known = as_vector(gram)
        if self.target is None:
            return self._descend(factor, cross, gram, known)
        own = np.sqrt(known.diagonal())
        lengths = np.where(own > 0.0, own, 1.0)
        known = known / (lengths[:, None] * lengths)
        scale = like(lengths, factor)[:, None]
        return self._descend(factor * scale, cross / scale, gram / (scale * scale.T), known) / scale

    def _descend(self, factor: Any, cross: Any, gram: Any, known: Vector) -> Any:
        """The steps; ``known`` is the Gram matrix on the host."""
        lipschitz = float(np.linalg.norm(known, 2))
        if not lipschitz > 0.0:
            return factor
        cross, gram = cross / lipschitz, gram / lipschitz
        best = point = ahead = factor
        # G times the point ahead follows from G times two others: one product per step is enough.
        at_point = at_ahead = gram @ factor
        lowest = value = np.inf
        momentum = 1.0
        for _ in range(self.steps):
            moved = (ahead - at_ahead + cross).clip(min=0)
            if self.target is not None:
                moved, self.multiplier = self.target.project(moved, self.multiplier)
            at_moved = gram @ moved
            if self.target is not None:
                before, value = value, inner(moved, 0.5 * at_moved - cross)
                if value <= lowest:
                    best, lowest = moved, value
                if value > before:
                    momentum, point, at_point = 1.0, moved, at_moved  # restart here
            # Not NumPy's root: its numbers are float64, and would make all of the factor so.
            following = 0.5 * (1.0 + sqrt(1.0 + 4.0 * momentum * momentum))
            further = (momentum - 1.0) / following
            ahead = moved + further * (moved - point)
            at_ahead = at_moved + further * (at_moved - at_point)
            point, at_point, momentum = moved, at_moved, following
        return point if self.target is None else best


class PenalisedHals:
    """HALS under ℓ₁ penalties, each tuned to a fraction of zeros in its row (ℓ₁ A-HALS).

    The smallest penalty that leaves the wanted fraction of zeros is a quantile of the row, so it is
    found exactly. The row keeps its best scale; ‖·‖∞ = 1 only fixes how a product of two factors is
    shared between them, and is brought about at the end of a fit.
    """

    separable = False

    def __init__(self, sweeps: int, zeros: float) -> None:
        self.sweeps = sweeps
        self.zeros = zeros

    def __call__(self, factor: Any, cross: Any, gram: Any) -> Any:
        factor = copy(factor)
        own = as_vector(gram.diagonal())
        n = factor.shape[1]
        drop = min(int(np.ceil(self.zeros * n)), n - 1)
        for _ in range(self.sweeps):
            for k in np.flatnonzero(own > 0):
                c = factor[k] + (cross[k] - gram[k] @ factor) / own[k]
                factor[k] = _penalised_tensor(c, drop) if is_tensor(c) else _penalised(c, drop)
        return factor


def _penalised(c: Any, drop: int) -> Any:
    """The minimum of a row under the penalty that leaves at least ``drop`` zeros."""
    values = as_vector(c)
    penalty = max(float(np.partition(values, drop - 1)[drop - 1]), 0.0) if drop else 0.0
    kept = np.maximum(values - penalty, 0.0)
    squares = float(kept @ kept)
    scale = 1.0 + penalty * float(kept.sum()) / squares if squares > 0.0 else 1.0
    return like(kept * scale, c)


def _penalised_tensor(c: Any, drop: int) -> Any:
    """The same, with every number left on the device."""
    values = c.to(wide(c))
    penalty = values.kthvalue(drop).values.clamp(min=0) if drop else values.new_zeros(())
    kept = (values - penalty).clamp(min=0)
    squares = kept @ kept
    growth = penalty * kept.sum() / squares.clamp(min=np.finfo(np.float32).tiny)
    return (kept * (1.0 + growth * (squares > 0))).to(c.dtype)


class ShrunkHals:
    """HALS under a Hoyer target: the default update of a constrained factor.

    Under a multiplier μ the best row for given others is u·(uᵀc) with u ∝ [c − t w]₊ and
    t = μβ/(G_kk uᵀc), that is F_k = gain·[c − t w]₊. Thresholds and gains of the update before are
    used in the sweeps, so they cost nothing. The minima c met in the last sweep are then projected
    together, each scaled by G_kk uᵀc: in that scale the projection's own thresholds μβ are the t
    above, so its answer is the step that the factorisation asks for, and it meets the target.

    Rows of little energy G_kk ‖F_k‖² become sparse first. Early on, when the energies mean nothing
    yet, all rows should share the burden alike: ``trust`` is the power of the energies that counts,
    which the loop raises from 0 to 1. Before that, while ``relaxed``, the sweeps know nothing of
    the target: what they give is left in ``free``, and only the answer meets the target.
    """

    separable = False

    def __init__(self, sweeps: int, target: Target) -> None:
        self.sweeps = sweeps
        self.target = target
        self.trust = 0.0
        self.relaxed = False
        self.free: Any = None
        self.multiplier: Multiplier = 0.0
        self.length: Vector | None = None  # uᵀc of each row
        self.spread: Vector = np.empty(0)  # wᵀu of each row

    def __call__(self, factor: Any, cross: Any, gram: Any) -> Any:
        factor, minima = copy(factor), empty_like(factor)
        own, squares = on_host(gram.diagonal(), row_squares(factor))
        host = self.thresholds(factor.shape[1], np.sqrt(squares), own)
        scale, shift, gain = like(np.stack(host), factor)
        if self.relaxed:
            shift = gain = None
        weights = self.target.weight_rows(factor)
        sweep(
            factor, cross, gram,
            sweeps=self.sweeps, shift=shift, gain=gain, weights=weights, minima=minima,
        )  # fmt: skip
        self.free = factor
        column = scale[:, None]
        answer, multiplier = self.target.project(minima.clip(min=0) * column, self.multiplier)
        answer = answer / column
        weighted = answer if weights is None else answer * weights
        squares, sums = on_host(row_squares(answer), row_sums(weighted))
        self.settle(multiplier, np.sqrt(squares), sums)
        return answer

    def thresholds(self, n: int, fallback: Vector, own: Vector) -> tuple[Vector, Vector, Vector]:
        """Scale of each row in the projection, and shift and gain in the sweeps before it."""
        if self.length is None:
            self.length, self.spread = fallback, np.zeros_like(fallback)
        length = np.where(self.length > 0.0, self.length, fallback)
        live = (length > 0.0) & (own > 0.0)
        length = np.where(live, length, 1.0)
        energy = np.where(live, own * length * length, 1.0)
        # Relative to the median, so that the multiplier keeps its unit while trust grows. Rows that
        # each meet the target have nothing to share.
        typical = float(np.median(energy[live])) if live.any() else 1.0
        trust = 0.0 if self.target.per_vector else self.trust
        scale = np.where(live, (energy / typical) ** trust / length, 1.0)
        shift = np.where(live, self.multiplier * self.target.beta(n) / scale, 0.0)
        # A 1-sparse row sits exactly at its threshold; a tenth of it is left to move.
        lost = np.minimum(shift * self.spread, 0.9 * length)
        shift = np.divide(lost, self.spread, out=np.zeros_like(lost), where=self.spread > 0.0)
        return scale, shift, length / (length - lost)

    def settle(self, multiplier: Multiplier, length: Vector, sums: Vector) -> None:
        """Remember what the projection found, for the thresholds of the next update."""
        self.length = length
        self.spread = np.divide(sums, length, out=np.zeros_like(sums), where=length > 0.0)
        # Thresholds and rows answer each other with a delay of one update, and would swing.
        change = DAMPING * (multiplier - self.multiplier)
        self.multiplier = self.multiplier + change if np.any(self.multiplier) else multiplier
