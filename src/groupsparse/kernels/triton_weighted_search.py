"""The search of one group of weighted vectors, on the device: `triton_search` and its jumps.

It differs in three things. The level is the first look's to find, since it depends on the weights.
The first look is at μ = 0, always. And a jump is made of ties and of corners.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_search import (
    ALPHA,
    ALPHA_HIGH,
    ALPHA_LOW,
    BEST,
    CONVERGED,
    CUT,
    FAR,
    FINAL,
    FIRST,
    FULL,
    HIGH,
    HIGH_TOTAL,
    LEFT,
    LEVEL,
    MODE,
    MU,
    NOT_FINITE,
    PASSES,
    PENDING,
    PHASE,
    SAMPLE_LEVEL,
    START,
    TIE_HIGH,
    TIED,
    TIES,
    TOLERANCE,
    UPPER,
    _after_full,
    _finish,
    begin_search,
)
from .triton_sums import FLAW_BAD
from .triton_weighted import FLAW_WEIGHTS

CORNERED, BAD_WEIGHTS = tl.constexpr(16), tl.constexpr(17)
TOPS = SAMPLE_LEVEL  # a search that begins with no sample keeps Σ β‖w‖₂ there
# What is found about a jump, one after the other: how much it can give, the blend of its ties, the
# first slot whose corner stays on the far side.
ALL, BLEND, CUTTING = (tl.constexpr(i) for i in range(3))
LAST_SLOT = tl.constexpr(1 << 40)


@triton.jit
def begin_weighted(state, target_one, start):
    """Set a group up; its level is that of the settings plus Σ β‖w‖₂, which nobody knows yet."""
    begin_search(state, target_one, 0.0 * target_one, target_one != target_one)
    tl.store(state + START, start)
    tl.store(state + PHASE, 1.0 * ALL)
    tl.store(state + CUT, 1.0 * LAST_SLOT)
    tl.store(state + LEFT, 0.0)


@triton.jit(noinline=True)
def next_weighted_step(state, total, slope, upper, flaws, longest, tops):
    """Take the sums of a pass, and say what the next one is for."""
    mode = tl.load(state + MODE)
    mu = tl.load(state + MU)
    tl.store(state + PASSES, tl.load(state + PASSES) + 1.0)
    if mode == FIRST:
        if flaws >= FLAW_WEIGHTS:
            tl.store(state + MODE, 1.0 * BAD_WEIGHTS)
        elif flaws >= FLAW_BAD:
            tl.store(state + MODE, 1.0 * NOT_FINITE)
        else:
            tl.store(state + TOPS, tops)
            tl.store(state + LEVEL, tl.load(state + LEVEL) + tops)
            tl.store(state + UPPER, upper * (1.0 + 8.9e-16))
            tl.store(state + MODE, 1.0 * FULL)
            _after_full(state, 0.0 * mu, total, slope, longest, True)
            tl.debug_barrier()
            start = tl.load(state + START)
            guess = (start > 0.0) & (start < FAR) & (tl.load(state + MODE) == FULL)
            tl.store(state + MU, tl.where(guess, start, tl.load(state + MU)))
    elif mode == TIES:
        _after_jump(state, mu, total, slope)
    elif mode == FINAL:
        _finish(state, mu, mu, tl.load(state + PENDING), longest)
    elif mode == HIGH:
        tl.store(state + HIGH_TOTAL, total)
        tl.store(state + ALPHA, 0.0)
        tl.store(state + MODE, 1.0 * TIES)
    else:
        _after_full(state, mu, total, slope, longest, True)


@triton.jit
def _after_jump(state, mu, ties, corners):
    """Find the blend, or the slot of the last corner that goes back, that makes up what is missing.

    ``ties`` and ``corners`` are the gains at the blend and the cut that the state holds.
    """
    phase = tl.load(state + PHASE)
    tolerance = tl.load(state + TOLERANCE)
    missing = tl.load(state + LEVEL) - tl.load(state + HIGH_TOTAL)
    low, high = tl.load(state + ALPHA_LOW), tl.load(state + ALPHA_HIGH)
    if phase == ALL:
        rest = missing - ties
        if (ties <= 0.0) & (corners <= 0.0):
            # Nothing jumps: rounding alone kept the total from the level.
            tl.store(state + TIE_HIGH, -1.0)
            _finish(state, tl.load(state + BEST), -1.0, 1.0 * CONVERGED, 0.0)
        elif (rest <= tolerance) | (corners <= 0.0):
            tl.store(state + CUT, -1.0)
            if rest >= -tolerance:
                _finish(state, mu, -1.0, 1.0 * TIED, 0.0)
            else:
                tl.store(state + PHASE, 1.0 * BLEND)
                tl.store(state + ALPHA, 0.5)
                tl.store(state + ALPHA_LOW, 0.0)
                tl.store(state + ALPHA_HIGH, 1.0)
        elif corners <= rest + tolerance:
            _finish(state, mu, -1.0, 1.0 * CORNERED, 0.0)
        else:
            tl.store(state + PHASE, 1.0 * CUTTING)
            tl.store(state + CUT, 0.5 * LAST_SLOT)
            tl.store(state + ALPHA_LOW, 0.0)
            tl.store(state + ALPHA_HIGH, 1.0 * LAST_SLOT)
            tl.store(state + LEFT, rest)
    elif phase == BLEND:
        alpha = tl.load(state + ALPHA)
        low = tl.where(ties > missing, alpha, low)
        high = tl.where(ties > missing, high, alpha)
        tl.store(state + ALPHA_LOW, low)
        tl.store(state + ALPHA_HIGH, high)
        # Below 1 two neighbours are 1.1e-16 apart: nothing less would ever be reached.
        if (tl.abs(ties - missing) <= tolerance) | (high - low <= 4e-16):
            _finish(state, mu, -1.0, 1.0 * TIED, 0.0)
        else:
            tl.store(state + ALPHA, 0.5 * (low + high))
    else:
        # Corners before the slot ``low`` fit into what is missing, those before ``high`` do not.
        cut = tl.load(state + CUT)
        rest = missing - ties - corners
        tl.store(state + LEFT, tl.where(rest >= 0.0, rest, tl.load(state + LEFT)))
        low = tl.where(rest >= 0.0, cut, low)
        high = tl.where(rest >= 0.0, high, cut)
        tl.store(state + ALPHA_LOW, low)
        tl.store(state + ALPHA_HIGH, high)
        middle = tl.floor(0.5 * (low + high))
        if high - low <= 1.0:
            tl.store(state + CUT, low)
            _finish(state, mu, -1.0, 1.0 * CORNERED, 0.0)
        else:
            tl.store(state + CUT, middle)
