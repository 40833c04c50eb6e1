"""The bracketed Newton search of one group, on the device: what ``dual.find_root`` is on the host.

One program updates one group between two passes. All it needs is in a row of float64 numbers; all
it decides is the next μ and the next mode. A difference from the host: large groups begin with a
sample of their vectors, and a group that jumps goes on to share out its ties here.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_sums import FLAW_BAD

# Columns of a group's state. The first ones are the settings of the call.
(MU, MODE, LEVEL, COUNT, TOLERANCE, SLACK, SAMPLE_LEVEL, SAMPLE_COUNT, LEAP, NORMAL, BEND, TRUST,
 ONE_HOT,
 ABOVE, ABOVE_TOTAL, ABOVE_SLOPE, BELOW, BELOW_TOTAL, BELOW_SLOPE, LAST, LAST_TOTAL, LAST_SLOPE,
 BEST, BEST_TOTAL, SLOW, ITERATIONS, PASSES, UPPER, PENDING,
 ALPHA, ALPHA_LOW, ALPHA_HIGH, TIE_LOW, TIE_HIGH, HIGH_TOTAL,
 START, PHASE, CUT, LEFT, STATE_FIELDS) = (
    tl.constexpr(i) for i in range(40)
)
SETTINGS = tl.constexpr(12)
# What a group's next pass is for.
SAMPLE, FIRST, FULL, FINAL, HIGH, TIES = (tl.constexpr(i) for i in range(6))
# How a group ended.
(DONE, FEASIBLE, CONVERGED, TIED, STALLED, NOT_FINITE, OUT_OF_RANGE) = (
    tl.constexpr(i) for i in (10, 10, 11, 12, 13, 14, 15)
)
NONE = tl.constexpr(-1.0)
FAR = tl.constexpr(1e308)


@triton.jit
def begin_search(state, target_one, start, sampled):
    """Set a group up: at the guess that was given, on the sample, or at 0."""
    tl.store(state + ITERATIONS, 0.0)
    tl.store(state + PASSES, 0.0)
    tl.store(state + UPPER, 0.0)
    tl.store(state + PENDING, 0.0)
    tl.store(state + ALPHA, 1.0)
    tl.store(state + TIE_LOW, 0.0)
    tl.store(state + TIE_HIGH, -1.0)
    tl.store(state + ONE_HOT, target_one)
    _reset(state)
    guess = (start > 0.0) & (start < FAR)
    tl.store(state + MU, tl.where(guess & (target_one == 0.0), start, 0.0))
    cold = sampled & ~guess & (target_one == 0.0)
    tl.store(state + MODE, tl.where(cold, 1.0 * SAMPLE, 1.0 * FIRST))


@triton.jit
def _reset(state):
    tl.store(state + ABOVE, NONE)
    tl.store(state + ABOVE_TOTAL, 0.0)
    tl.store(state + ABOVE_SLOPE, 0.0)
    tl.store(state + BELOW, FAR)
    tl.store(state + BELOW_TOTAL, 0.0)
    tl.store(state + BELOW_SLOPE, 0.0)
    tl.store(state + LAST, 0.0)
    tl.store(state + LAST_TOTAL, 0.0)
    tl.store(state + LAST_SLOPE, 0.0)
    tl.store(state + BEST, 0.0)
    tl.store(state + BEST_TOTAL, FAR)
    tl.store(state + SLOW, 0.0)


@triton.jit
def _newton(mu, total, slope, level):
    """Newton's step, or -1 where there is none."""
    falls = slope < 0.0
    found = mu - (total - level) / tl.where(falls, slope, -1.0)
    fine = falls & (found > -FAR) & (found < FAR)
    return tl.where(fine, found, -1.0)


@triton.jit
def _bent(state, mu, found):
    """Newton's step, with the bend that g has for normal entries; exact to third order there."""
    share = 0.5 * tl.load(state + BEND) * (found - mu) / tl.where(mu > 0.0, mu, 1.0)
    small = (mu > 0.0) & (found > 0.0) & (tl.abs(share) < 0.1)
    return tl.where(small, found - share * (found - mu), found)


@triton.jit
def _first_step(state, total, slope, level):
    """The step from μ = 0: where normal entries would have their root, if these look normal.

    ``NORMAL`` is the total of normal entries at 0, and ``LEAP`` over the slope their root.
    """
    normal = tl.load(state + NORMAL)
    alike = (tl.abs(total - normal) < 0.1 * normal) & (slope < 0.0)
    leap = tl.load(state + LEAP) / tl.where(slope < 0.0, -slope, 1.0)
    return tl.where(alike & (leap > 0.0) & (leap < FAR), leap, _newton(0.0, total, slope, level))


@triton.jit
def _middle(left, right):
    """Halve the exponent while the ends are orders of magnitude apart, the interval after that."""
    tiny = right * 0.000244140625
    geometric = tl.sqrt(left) * tl.sqrt(right)
    plain = left + 0.5 * (right - left)
    return tl.where(left == 0.0, tiny, tl.where(right > 4.0 * left, geometric, plain))


@triton.jit
def _finish(state, mu, evaluated, status, longest):
    """End at μ; where another μ was evaluated last, one more pass leaves the right sums behind."""
    here = (mu == evaluated) | (mu == 0.0)
    status = tl.where(here & (longest > 1.0) & (mu > 0.0), 1.0 * OUT_OF_RANGE, status)
    tl.store(state + MU, mu)
    tl.store(state + PENDING, status)
    tl.store(state + MODE, tl.where(here, status, 1.0 * FINAL))


@triton.jit(noinline=True)
def next_step(state, total, slope, upper, flaws, longest, WIDE: tl.constexpr):
    """Take the sums of a pass, and say what the next one is for."""
    mode = tl.load(state + MODE)
    mu = tl.load(state + MU)
    tl.store(state + PASSES, tl.load(state + PASSES) + 1.0)
    if mode == SAMPLE:
        _after_sample(state, mu, total, slope, flaws)
    elif flaws >= FLAW_BAD:
        tl.store(state + MODE, 1.0 * NOT_FINITE)
    elif mode == TIES:
        _after_ties(state, mu, total, WIDE)
    elif mode == FINAL:
        _finish(state, mu, mu, tl.load(state + PENDING), longest)
    elif mode == HIGH:
        tl.store(state + HIGH_TOTAL, total)
        tl.store(state + ALPHA, 0.0)
        tl.store(state + MODE, 1.0 * TIES)
    elif (mode == FIRST) & (flaws > 0.0):
        tl.store(state + MODE, 1.0 * FULL)
    else:
        # A margin beyond the rounding of thresholds: nothing is left at the upper end.
        tl.store(state + UPPER, upper * (1.0 + (8.9e-16 if WIDE else 1e-12)))
        tl.store(state + MODE, 1.0 * FULL)
        _after_full(state, mu, total, slope, longest, WIDE)


@triton.jit
def _after_sample(state, mu, total, slope, flaws):
    level = tl.load(state + SAMPLE_LEVEL)
    steps = tl.load(state + ITERATIONS) + 1.0
    tl.store(state + ITERATIONS, steps)
    usable = flaws == 0.0
    step = _bent(state, mu, _newton(mu, total, slope, level))
    if mu == 0.0:
        step = _first_step(state, total, slope, level)
    found = tl.where(usable, step, -1.0)
    # A sample is not nearer to the truth than this, and a pass over all of it makes up for it.
    near = tl.abs(total - level) <= 0.04 * tl.load(state + SAMPLE_COUNT)
    # Where the entries look normal, the first step is as good as what a sample can find.
    normal = tl.load(state + NORMAL)
    alike = tl.abs(total - normal) < tl.load(state + TRUST) * normal
    near = near | ((mu == 0.0) & alike)
    ended = ~usable | near | (steps >= 8.0) | ~(found > 0.0)
    tl.store(state + MU, tl.maximum(found, 0.0))
    tl.store(state + MODE, tl.where(ended, 1.0 * FIRST, 1.0 * SAMPLE))
    if ended:
        tl.store(state + ITERATIONS, 0.0)
        tl.store(state + PASSES, 0.0)


@triton.jit
def _after_full(state, mu, total, slope, longest, WIDE: tl.constexpr):
    level = tl.load(state + LEVEL)
    before = tl.abs(tl.load(state + BEST_TOTAL) - level)
    excess = tl.abs(total - level)
    enough = level + tl.where(mu == 0.0, tl.load(state + SLACK), 0.0)
    steps = tl.load(state + ITERATIONS) + 1.0
    tl.store(state + ITERATIONS, steps)
    tl.store(state + LAST, mu)
    tl.store(state + LAST_TOTAL, total)
    tl.store(state + LAST_SLOPE, slope)
    if excess < before:
        tl.store(state + BEST, mu)
        tl.store(state + BEST_TOTAL, total)
    if total > enough:
        if mu >= tl.load(state + ABOVE):
            tl.store(state + ABOVE, mu)
            tl.store(state + ABOVE_TOTAL, total)
            tl.store(state + ABOVE_SLOPE, slope)
    elif mu <= tl.load(state + BELOW):
        tl.store(state + BELOW, mu)
        tl.store(state + BELOW_TOTAL, total)
        tl.store(state + BELOW_SLOPE, slope)
    # A step that leaves more than a third of the excess is a slow one.
    left = tl.minimum(excess, before)
    slow = tl.where(left > before / 3.0, tl.load(state + SLOW) + 1.0, 0.0)
    tl.store(state + SLOW, slow)
    if (mu == 0.0) & (total <= enough):
        tl.store(state + BEST, 0.0)
        tl.store(state + BEST_TOTAL, total)
        _finish(state, 0.0, 0.0, 1.0 * FEASIBLE, longest)
    elif tl.load(state + ONE_HOT) > 0.0:
        _finish(state, tl.load(state + UPPER), mu, 1.0 * CONVERGED, longest)
    elif left <= tl.load(state + TOLERANCE):
        _finish(state, tl.load(state + BEST), mu, 1.0 * CONVERGED, longest)
    elif steps >= 250.0:
        _finish(state, tl.load(state + BEST), mu, 1.0 * STALLED, longest)
    else:
        _propose(state, mu, slow, longest, WIDE)


@triton.jit
def _propose(state, evaluated, slow, longest, WIDE: tl.constexpr):
    """The next μ strictly inside the bracket; where no float is left in it, the total jumps."""
    level = tl.load(state + LEVEL)
    above = tl.load(state + ABOVE)
    below = tl.load(state + BELOW)
    last = _newton(tl.load(state + LAST), tl.load(state + LAST_TOTAL),
                   tl.load(state + LAST_SLOPE), level)
    last = _bent(state, tl.load(state + LAST), last)
    if above < 0.0:
        # Every known point lies to the right of the root.
        use = (slow == 0.0) & (last > 0.0) & (last < below)
        tl.store(state + MU, tl.where(use, last, 0.0))
    else:
        again = _newton(above, tl.load(state + ABOVE_TOTAL), tl.load(state + ABOVE_SLOPE), level)
        if (evaluated == 0.0) & (below >= FAR):
            last = _first_step(state, tl.load(state + LAST_TOTAL), tl.load(state + LAST_SLOPE),
                               level)
        last_fits = (last > above) & (last < below)
        again_fits = (again > above) & (again < below)
        unbounded = below >= FAR
        upper = tl.load(state + UPPER)
        middle = _middle(above, below)
        # In float32 a jump cannot be told from a step this narrow; entries are further apart.
        narrow = (below - above) <= (0.0 if WIDE else 5e-14) * below
        middle_fits = (middle > above) & (middle < below) & ~narrow
        # Once halving has begun, it goes on for as long as steps are slow.
        if (slow < 3.0) & (last_fits | again_fits) & ~narrow:
            tl.store(state + MU, tl.where(last_fits, last, again))
        elif unbounded & (upper > above):
            tl.store(state + SLOW, 2.0)
            tl.store(state + MU, upper)
        elif unbounded:
            _finish(state, above, evaluated, 1.0 * CONVERGED, longest)
        elif middle_fits:
            tl.store(state + SLOW, 2.0)
            tl.store(state + MU, middle)
        else:
            margin = 1.8e-15 if WIDE else 1e-12
            tl.store(state + TIE_LOW, above * (1.0 - margin))
            tl.store(state + TIE_HIGH, below * (1.0 + margin))
            tl.store(state + MU, below * (1.0 + margin))
            tl.store(state + MODE, 1.0 * HIGH)


@triton.jit
def _after_ties(state, mu, gain, WIDE: tl.constexpr):
    """Find the blend at which the tied vectors make up what is missing."""
    alpha = tl.load(state + ALPHA)
    missing = tl.load(state + LEVEL) - tl.load(state + HIGH_TOTAL)
    tolerance = tl.load(state + TOLERANCE)
    if alpha == 0.0:
        # Everything that the ties can give.
        tl.store(state + ALPHA_LOW, 0.0)
        tl.store(state + ALPHA_HIGH, 1.0)
        tl.store(state + ALPHA, 0.5)
        if gain <= 0.0:
            # Nothing jumps: rounding alone kept the total from the level.
            tl.store(state + TIE_HIGH, -1.0)
            tl.store(state + ALPHA, 1.0)
            _finish(state, tl.load(state + BEST), -1.0, 1.0 * CONVERGED, 0.0)
        elif gain <= missing + tolerance:
            tl.store(state + ALPHA, 0.0)
            _finish(state, mu, -1.0, 1.0 * TIED, 0.0)
    else:
        low, high = tl.load(state + ALPHA_LOW), tl.load(state + ALPHA_HIGH)
        low = tl.where(gain > missing, alpha, low)
        high = tl.where(gain > missing, high, alpha)
        tl.store(state + ALPHA_LOW, low)
        tl.store(state + ALPHA_HIGH, high)
        # Below 1 two neighbours are 1.1e-16 apart: nothing less would ever be reached.
        ended = (tl.abs(gain - missing) <= tolerance) | (high - low <= 4e-16)
        if ended:
            _finish(state, mu, -1.0, 1.0 * TIED, 0.0)
        else:
            tl.store(state + ALPHA, 0.5 * (low + high))
