"""Where the total of weighted vectors jumps over the level: both sides, and what lies between.

``groupsparse.ties`` says what is done, on the host. Vectors with equal ratios |c|/w that leave
together (*ties*) all take one blend of their two answers. Where that is not enough, 1-sparse
answers that move to a smaller weight (*corners*) go back, one vector after the other in the order
of their slots, and the last one takes two entries. Rare, so simple.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_sums import LENGTH
from .triton_tiles import inverse_root
from .triton_weighted import HUGE, corner_at, kept_of, load_pair, sums_at, tile_of


@triton.jit
def sides_of(table, weighed, at, weights, rows, top, scale, power, beta, least, low_mu, high_mu,
             C: tl.constexpr, DTYPES: tl.constexpr):
    """What is to know of both answers of each vector: wᵀx, 1/√Q, thresholds, corners, cosine."""
    R: tl.constexpr = rows.shape[0]
    low_t = tl.minimum(low_mu * beta * scale, HUGE)
    high_t = tl.minimum(high_mu * beta * scale, HUGE)
    low_s, low_q, _, _ = sums_at(table, weighed, at, weights, rows, scale, power, low_t, C, DTYPES)
    high_s, high_q, _, _ = sums_at(
        table, weighed, at, weights, rows, scale, power, high_t, C, DTYPES)
    low_place, low_weight, low_size = corner_at(
        table, weighed, at, weights, rows, scale, power, low_t, least, C, DTYPES)
    high_place, high_weight, high_size = corner_at(
        table, weighed, at, weights, rows, scale, power, high_t, least, C, DTYPES)
    length = tl.load(table + LENGTH).to(tl.int32)
    product = tl.zeros([R, C], tl.float64)
    for k in range(0, length, C):
        c, w = load_pair(table, weighed, at, weights, k, rows, scale, power, C, DTYPES)
        d = tl.maximum(c - low_t[:, None] * w, 0.0)
        product += d * tl.maximum(c - high_t[:, None] * w, 0.0)
    low_unit, high_unit = inverse_root(low_q, True), inverse_root(high_q, True)
    empty, gone = low_q == 0.0, high_q == 0.0
    low = tl.where(empty, low_weight, low_s * low_unit)
    high = tl.where(gone, high_weight, high_s * high_unit)
    at_corner = tl.maximum(high_size - low_t * high_weight, 0.0)
    cosine = low_unit * tl.where(gone, at_corner, tl.sum(product, 1) * high_unit)
    moves = rows & (top > 0.0) & (beta * (low - high) > 1e-13 * (1.0 + beta * low))
    # cᵀx of both, since c = d + t w where d is not zero.
    low_value = tl.where(empty, low_size, (low_q + low_t * low_s) * low_unit)
    high_value = tl.where(gone, high_size, (high_q + high_t * high_s) * high_unit)
    return (
        moves, empty, gone, low, high, low_t, low_unit, high_unit, cosine, low_place, high_place,
        low_weight, high_weight, low_size, high_size, low_value, high_value,
    )


@triton.jit
def blended(low, high, cosine, alpha):
    """wᵀx of the unit vector between two unit vectors, and the length it is divided by."""
    rest = 1.0 - alpha
    norm = tl.sqrt(rest * rest + alpha * alpha + 2.0 * rest * alpha * cosine)
    return (rest * low + alpha * high) / norm, norm


@triton.jit
def weighted_gains(table, weighed, first, end, low_mu, high_mu, alpha, cut, kept, R: tl.constexpr,
                   C: tl.constexpr, COLUMNS: tl.constexpr, DTYPES: tl.constexpr):
    """What a segment's ties gain at blend ``alpha``, and its corners of slots before ``cut``."""
    ties = tl.zeros([R], tl.float64)
    corners = tl.zeros([R], tl.float64)
    for u in range(first, end, 1 if COLUMNS else R):
        at, weights, rows, slots = tile_of(table, weighed, u, end, R, COLUMNS)
        top, scale, back, power, beta, least = kept_of(kept, slots, rows)
        (moves, empty, gone, low, high, low_t, low_unit, high_unit, cosine, low_place, high_place,
         low_weight, high_weight, low_size, high_size, low_value, high_value) = sides_of(
            table, weighed, at, weights, rows, top, scale, power, beta, least, low_mu, high_mu, C,
            DTYPES)
        between, norm = blended(low, high, cosine, alpha)
        ties += tl.where(moves & ~empty, beta * (between - high), 0.0)
        returns = moves & empty & (slots.to(tl.float64) < cut)
        corners += tl.where(returns, beta * (low - high), 0.0)
    return tl.sum(ties, 0), tl.sum(corners, 0)


@triton.jit
def on_arc(low_weight, high_weight, budget):
    """The unit vector on two entries with wᵀx = budget: its parts of either corner's entry."""
    square = low_weight * low_weight + high_weight * high_weight
    root = tl.sqrt(tl.maximum(square - budget * budget, 0.0))
    safe = tl.where(square > 0.0, square, 1.0)
    mine = (budget * low_weight - high_weight * root) / safe
    other = (budget * high_weight + low_weight * root) / safe
    return tl.maximum(mine, 0.0), other


@triton.jit
def mixture(table, weighed, at, weights, rows, slots, top, scale, power, beta, least, low_mu,
            high_mu, alpha, cut, left, C: tl.constexpr, DTYPES: tl.constexpr):
    """What the vectors that jump are made of, z = a d_low + b d_high + one entry + another entry.

    Returns which these are, the threshold of d_low, a, b, and place and size of both entries.
    """
    (moves, empty, gone, low, high, low_t, low_unit, high_unit, cosine, low_place, high_place,
     low_weight, high_weight, low_size, high_size, low_value, high_value) = sides_of(
        table, weighed, at, weights, rows, top, scale, power, beta, least, low_mu, high_mu, C,
        DTYPES)
    _, norm = blended(low, high, cosine, alpha)
    rest, share = (1.0 - alpha) / norm, alpha / norm
    size = rest * low_value + share * high_value  # of a tie
    mine, other = on_arc(low_weight, high_weight, high_weight + left / beta)
    slot = slots.to(tl.float64)
    mine = tl.where(slot < cut, 1.0, tl.where(slot == cut, mine, 0.0))
    other = tl.where(slot < cut, 0.0, tl.where(slot == cut, other, 1.0))
    length = mine * low_size + other * high_size  # of a corner
    a = tl.where(empty, 0.0, size * rest * low_unit)
    b = tl.where(empty, 0.0, size * share * high_unit)
    low_part = tl.where(empty, length * mine, 0.0)
    high_part = tl.where(empty, length * other, tl.where(gone, size * share, 0.0))
    return moves, low_t, a, b, low_place, low_part, high_place, high_part
