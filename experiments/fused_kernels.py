"""The kernels of `experiments.fused`: two passes over memory on the way there, two on the way back.

An activation is channels-last, so it is a matrix with one row per pixel. A *unit* is what becomes
one row of the output: a row of it, or with a pool the four rows of a window.

Sums are split over programs and added up in a fixed order by a kernel of their own: there are no
atomic additions, so the same step gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ("units", "rows", "half", "chunk", "splits")  # compiled once for all of their values


@triton.jit
def finished(x, mean, scale, bias, TYPE: tl.constexpr):
    """What batch norm and ReLU make of x, rounded as it is stored. NaN stays NaN."""
    y = tl.fma(x - mean, scale, bias)
    return tl.where(y <= 0.0, 0.0, y).to(TYPE).to(tl.float32)


@triton.jit
def largest(y0, y1, y2, y3):
    """The largest of four and its place: the first of equal ones, as in PyTorch."""
    best, place = y0, tl.zeros_like(y0).to(tl.int32)
    place = tl.where(y1 > best, 1, place)
    best = tl.where(y1 > best, y1, best)
    place = tl.where(y2 > best, 2, place)
    best = tl.where(y2 > best, y2, best)
    place = tl.where(y3 > best, 3, place)
    best = tl.where(y3 > best, y3, best)
    return best, place


@triton.jit
def window(x, unit, half, channels, c, there):
    """The offsets of the first pixel of each window, and its four pixels in PyTorch's order."""
    place = 2 * (unit + (unit // half) * half)[:, None] * channels + c[None, :]
    below = 2 * half * channels
    x0 = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    x1 = tl.load(x + place + channels, mask=there, other=0.0).to(tl.float32)
    x2 = tl.load(x + place + below, mask=there, other=0.0).to(tl.float32)
    x3 = tl.load(x + place + below + channels, mask=there, other=0.0).to(tl.float32)
    return place, x0, x1, x2, x3


@triton.jit
def of_channels(mean, deviation, weight, bias, c, exists):
    """Mean, factor and bias of some channels, as rows."""
    m = tl.load(mean + c, mask=exists, other=0.0)
    i = tl.load(deviation + c, mask=exists, other=0.0)
    w = tl.load(weight + c, mask=exists, other=0.0)
    b = tl.load(bias + c, mask=exists, other=0.0)
    return m[None, :], (i * w)[None, :], b[None, :]


@triton.jit(do_not_specialize=SIZES)
def sum_moments(x, parts, rows, channels, chunk, splits,
                TILE: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Mean and sum of squared distances from it, of each channel over this program's rows."""
    split = tl.program_id(0)
    first = split * chunk
    end = tl.minimum(first + chunk, rows)
    r = tl.arange(0, TILE)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = c < channels
    # Distances from about the mean: squares of the values themselves would cancel.
    there = (first + r < end)[:, None] & exists[None, :]
    head = tl.load(x + (first + r)[:, None] * channels + c[None, :], mask=there, other=0.0)
    shift = tl.sum(head.to(tl.float32), 0) / tl.minimum(end - first, TILE).to(tl.float32)
    total = tl.zeros((TILE, WIDTH), tl.float32)
    squares = tl.zeros((TILE, WIDTH), tl.float32)
    for start in tl.range(first, end, TILE, num_stages=STAGES):
        there = (start + r < end)[:, None] & exists[None, :]
        values = tl.load(x + (start + r)[:, None] * channels + c[None, :], mask=there, other=0.0)
        d = tl.where(there, values.to(tl.float32) - shift[None, :], 0.0)
        total += d
        squares += d * d
    count = (end - first).to(tl.float32)
    sums = tl.sum(total, 0)
    rest = tl.sum(squares, 0) - sums * sums / count
    place = split * channels + c
    tl.store(parts + place, shift + sums / count, mask=exists)
    # Rounding may leave a little less than nothing; NaN must stay.
    tl.store(parts + splits * channels + place, tl.where(rest < 0.0, 0.0, rest), mask=exists)


@triton.jit(do_not_specialize=SIZES)
def combine_moments(parts, mean, deviation, running_mean, running_var,
                    rows, channels, chunk, splits, momentum, eps,
                    SPLITS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Statistics of all rows from those of the parts (Chan's formula), and the running averages."""
    c = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    exists = c < channels
    i = tl.arange(0, SPLITS)
    there = (i < splits)[:, None] & exists[None, :]
    place = i[:, None] * channels + c[None, :]
    one = tl.load(parts + c, mask=exists, other=0.0)
    means = tl.load(parts + place, mask=there, other=0.0)
    rests = tl.load(parts + splits * channels + place, mask=there, other=0.0)
    counts = tl.maximum(tl.minimum(rows - i * chunk, chunk), 0).to(tl.float32)[:, None]
    n = rows.to(tl.float32)
    m = one + tl.sum(tl.where(there, counts * (means - one[None, :]), 0.0), 0) / n
    d = means - m[None, :]
    rest = tl.sum(tl.where(there, rests + counts * d * d, 0.0), 0)
    tl.store(mean + c, m, mask=exists)
    tl.store(deviation + c, 1.0 / tl.sqrt(rest / n + eps), mask=exists)  # its inverse
    old = tl.load(running_mean + c, mask=exists, other=0.0)
    tl.store(running_mean + c, old + momentum * (m - old), mask=exists)
    old = tl.load(running_var + c, mask=exists, other=0.0)
    tl.store(running_var + c, old + momentum * (rest / (n - 1.0) - old), mask=exists)


@triton.jit(do_not_specialize=SIZES)
def write_output(x, y, mean, deviation, weight, bias, units, channels, half,
                 TILE: tl.constexpr, WIDTH: tl.constexpr, POOL: tl.constexpr):  # fmt: skip
    """Normalise, cut at zero and, with a pool, keep the largest of each window."""
    unit = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = (unit < units)[:, None] & (c < channels)[None, :]
    m, scale, b = of_channels(mean, deviation, weight, bias, c, c < channels)
    out = unit[:, None] * channels + c[None, :]
    TYPE: tl.constexpr = y.dtype.element_ty
    if POOL:
        _, x0, x1, x2, x3 = window(x, unit, half, channels, c, there)
        y0, y1 = finished(x0, m, scale, b, TYPE), finished(x1, m, scale, b, TYPE)
        y2, y3 = finished(x2, m, scale, b, TYPE), finished(x3, m, scale, b, TYPE)
        found, _ = largest(y0, y1, y2, y3)
    else:
        values = tl.load(x + out, mask=there, other=0.0).to(tl.float32)
        found = finished(values, m, scale, b, TYPE)
    tl.store(y + out, found.to(TYPE), mask=there)


@triton.jit(do_not_specialize=SIZES)
def sum_gradients(x, dy, parts, mean, deviation, weight, bias,
                  units, channels, half, chunk, splits,
                  TILE: tl.constexpr, WIDTH: tl.constexpr, POOL: tl.constexpr,
                  STAGES: tl.constexpr):  # fmt: skip
    """Of each channel: the sums of the gradient, and of it times the distance from the mean."""
    split = tl.program_id(0)
    first = split * chunk
    end = tl.minimum(first + chunk, units)
    r = tl.arange(0, TILE)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = c < channels
    m, scale, b = of_channels(mean, deviation, weight, bias, c, exists)
    TYPE: tl.constexpr = x.dtype.element_ty
    total = tl.zeros((TILE, WIDTH), tl.float32)
    products = tl.zeros((TILE, WIDTH), tl.float32)
    for start in tl.range(first, end, TILE, num_stages=STAGES):
        unit = start + r
        there = (unit < end)[:, None] & exists[None, :]
        place = unit[:, None] * channels + c[None, :]
        g = tl.load(dy + place, mask=there, other=0.0).to(tl.float32)
        if POOL:
            _, x0, x1, x2, x3 = window(x, unit, half, channels, c, there)
            y0, y1 = finished(x0, m, scale, b, TYPE), finished(x1, m, scale, b, TYPE)
            y2, y3 = finished(x2, m, scale, b, TYPE), finished(x3, m, scale, b, TYPE)
            y, at = largest(y0, y1, y2, y3)
            # Only the largest of a window has a gradient.
            values = tl.where(at < 2, tl.where(at == 0, x0, x1), tl.where(at == 2, x2, x3))
        else:
            values = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
            y = finished(values, m, scale, b, TYPE)
        g = tl.where(y <= 0.0, 0.0, g)
        total += g
        products += g * (values - m)
    place = split * channels + c
    tl.store(parts + place, tl.sum(total, 0), mask=exists)
    tl.store(parts + splits * channels + place, tl.sum(products, 0), mask=exists)


@triton.jit(do_not_specialize=SIZES)
def combine_gradients(parts, deviation, weight, dweight, dbias, level, slope,
                      rows, channels, splits,
                      SPLITS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Add up the parts; also the line of each channel that its gradient loses to the statistics."""
    c = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    exists = c < channels
    i = tl.arange(0, SPLITS)
    there = (i < splits)[:, None] & exists[None, :]
    place = i[:, None] * channels + c[None, :]
    total = tl.sum(tl.load(parts + place, mask=there, other=0.0), 0)
    products = tl.sum(tl.load(parts + splits * channels + place, mask=there, other=0.0), 0)
    inverse = tl.load(deviation + c, mask=exists, other=0.0)
    scale = inverse * tl.load(weight + c, mask=exists, other=0.0) / rows.to(tl.float32)
    tl.store(dbias + c, total, mask=exists)
    tl.store(dweight + c, products * inverse, mask=exists)
    tl.store(level + c, scale * total, mask=exists)
    tl.store(slope + c, scale * inverse * inverse * products, mask=exists)


@triton.jit
def store_gradient(dx, place, value, g, mean, scale, level, slope, there):
    """The gradient of one pixel's input, from that of its output."""
    found = tl.fma(scale, g, -tl.fma(value - mean, slope, level))
    tl.store(dx + place, found.to(dx.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES)
def write_gradient(x, dy, dx, mean, deviation, weight, bias, level, slope, units, channels, half,
                   TILE: tl.constexpr, WIDTH: tl.constexpr, POOL: tl.constexpr):  # fmt: skip
    """The input's gradient; with a pool, of the four pixels of each window."""
    unit = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    exists = c < channels
    there = (unit < units)[:, None] & exists[None, :]
    m, scale, b = of_channels(mean, deviation, weight, bias, c, exists)
    a = tl.load(level + c, mask=exists, other=0.0)[None, :]
    s = tl.load(slope + c, mask=exists, other=0.0)[None, :]
    out = unit[:, None] * channels + c[None, :]
    g = tl.load(dy + out, mask=there, other=0.0).to(tl.float32)
    TYPE: tl.constexpr = x.dtype.element_ty
    if POOL:
        place, x0, x1, x2, x3 = window(x, unit, half, channels, c, there)
        y0, y1 = finished(x0, m, scale, b, TYPE), finished(x1, m, scale, b, TYPE)
        y2, y3 = finished(x2, m, scale, b, TYPE), finished(x3, m, scale, b, TYPE)
        y, at = largest(y0, y1, y2, y3)
        g = tl.where(y <= 0.0, 0.0, g)
        below = place + 2 * half * channels
        store_gradient(dx, place, x0, tl.where(at == 0, g, 0.0), m, scale, a, s, there)
        store_gradient(dx, place + channels, x1, tl.where(at == 1, g, 0.0), m, scale, a, s, there)
        store_gradient(dx, below, x2, tl.where(at == 2, g, 0.0), m, scale, a, s, there)
        store_gradient(dx, below + channels, x3, tl.where(at == 3, g, 0.0), m, scale, a, s, there)
    else:
        values = tl.load(x + out, mask=there, other=0.0).to(tl.float32)
        g = tl.where(finished(values, m, scale, b, TYPE) <= 0.0, 0.0, g)
        store_gradient(dx, out, values, g, m, scale, a, s, there)
