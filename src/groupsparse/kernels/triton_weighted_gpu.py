"""The Triton kernels for weighted vectors: `triton_gpu` with the passes of `triton_weighted`.

``solve_weighted`` and ``write_weighted`` are launched as ``solve_groups`` and ``write_groups`` are;
the first round looks at the weights as well, so these cost no launch of their own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_gpu import (
    COLUMNS,
    COLUMNS_16,
    END,
    FLAWS,
    GROUP,
    KIND,
    LONGEST,
    PART,
    PART_FIELDS,
    ROWS_16,
    SEGMENT_FIELDS,
    SLOPE,
    TENSOR,
    TOTAL,
    UNIT,
    UPPER,
    _store_part,
    meet,
)
from .triton_jumps import mixture, weighted_gains
from .triton_search import (
    ALPHA,
    CONVERGED,
    CUT,
    DONE,
    FIRST,
    LEFT,
    MODE,
    MU,
    SETTINGS,
    STALLED,
    STATE_FIELDS,
    TIE_HIGH,
    TIE_LOW,
    TIED,
    TIES,
)
from .triton_sums import ADDRESS, DTYPE, LENGTH, OUT, STEP, TENSOR_FIELDS
from .triton_tiles import inverse_root, load_values, store_values
from .triton_weighted import (
    HUGE,
    KEPT_FACTOR,
    KEPT_FIELDS,
    WEIGHT_FIELDS,
    corner_at,
    first_look,
    kept_of,
    load_pair,
    tile_of,
    weighted_sums,
)
from .triton_weighted_search import CORNERED, begin_weighted, next_weighted_step
from .triton_write import DUAL, PRIMAL, TERMS, VALUE_FIELDS, _signed


@triton.jit
def _walk(table, weighed, unit, end, row, mode, mu, kept, part, R: tl.constexpr, C: tl.constexpr,
          COLUMNS: tl.constexpr, DTYPES: tl.constexpr):
    """One segment in one round."""
    if mode == FIRST:
        total, slope, upper, flaws, tops = first_look(
            table, weighed, unit, end, kept, R, C, COLUMNS, DTYPES)
        _store_part(part, total, slope, upper, flaws, tops)
    elif mode == TIES:
        ties, corners = weighted_gains(
            table, weighed, unit, end, tl.load(row + TIE_LOW), tl.load(row + TIE_HIGH),
            tl.load(row + ALPHA, volatile=True), tl.load(row + CUT, volatile=True), kept, R, C,
            COLUMNS, DTYPES)
        _store_part(part, ties, corners, 0.0, 0.0, 0.0)
    else:
        total, slope, longest = weighted_sums(
            table, weighed, unit, end, mu, kept, R, C, COLUMNS, DTYPES)
        _store_part(part, total, slope, 0.0, 0.0, longest)


@triton.jit
def _step(row, first, end, parts, BLOCK: tl.constexpr):
    """Add up a group's parts and take its next step; returns whether that was the last one."""
    ended = 0
    if tl.load(row + MODE, volatile=True) < DONE:
        total = tl.zeros([BLOCK], tl.float64)
        slope = tl.zeros([BLOCK], tl.float64)
        upper = tl.zeros([BLOCK], tl.float64)
        flaws = tl.zeros([BLOCK], tl.float64)
        longest = tl.zeros([BLOCK], tl.float64)
        tops = tl.zeros([BLOCK], tl.float64)
        for k in range(first, end, BLOCK):
            at = k + tl.arange(0, BLOCK)
            mask = at < end
            part = parts + at * PART_FIELDS
            total += tl.load(part + TOTAL, mask=mask, other=0.0, volatile=True)
            slope += tl.load(part + SLOPE, mask=mask, other=0.0, volatile=True)
            upper = tl.maximum(upper, tl.load(part + UPPER, mask=mask, other=0.0, volatile=True))
            flaws = tl.maximum(flaws, tl.load(part + FLAWS, mask=mask, other=0.0, volatile=True))
            more = tl.load(part + LONGEST, mask=mask, other=0.0, volatile=True)
            longest = tl.maximum(longest, more)
            tops += more  # of the first look; see ``_walk``
        next_weighted_step(row, tl.sum(total, 0), tl.sum(slope, 0), tl.max(upper, 0),
                           tl.max(flaws, 0), tl.max(longest, 0), tl.sum(tops, 0))
        tl.debug_barrier()  # one thread wrote the mode, all read it
        if tl.load(row + MODE) >= DONE:
            ended = 1
    return ended


@triton.jit(do_not_specialize=["n_groups"])
def solve_weighted(tensors, weights, segments, programs, groups, settings, state, parts, kept,
                   counters, n_groups, KINDS: tl.constexpr, DTYPES: tl.constexpr,
                   BLOCK: tl.constexpr):
    """Find every group's multiplier. ``counters``: arrivals, and groups that are not done yet."""
    pid = tl.program_id(0)
    count = tl.num_programs(0)
    for g in range(pid, n_groups, count):
        setting = settings + g * SETTINGS
        row = state + g * STATE_FIELDS
        for k in tl.static_range(2, SETTINGS):
            tl.store(row + k, tl.load(setting + k))
        begin_weighted(row, tl.load(setting), tl.load(setting + 1))
    if pid == 0:
        tl.store(counters + 1, n_groups)
    meet(counters)
    first, last = tl.load(programs + pid), tl.load(programs + pid + 1)
    running = n_groups.to(tl.int64)
    while running > 0:
        for index in range(first, last):
            segment = segments + index * SEGMENT_FIELDS
            row = state + tl.load(segment + GROUP) * STATE_FIELDS
            mode = tl.load(row + MODE, volatile=True)
            if mode < DONE:
                mu = tl.load(row + MU, volatile=True)
                tensor = tl.load(segment + TENSOR)
                table, weighed = tensors + tensor * TENSOR_FIELDS, weights + tensor * WEIGHT_FIELDS
                kind, part = tl.load(segment + KIND), parts + tl.load(segment + PART) * PART_FIELDS
                unit, end = tl.load(segment + UNIT), tl.load(segment + END)
                if KINDS & 1:
                    if kind == ROWS_16:
                        _walk(table, weighed, unit, end, row, mode, mu, kept, part, 64, 16, False,
                              DTYPES)
                if KINDS & 8:
                    if (kind > ROWS_16) & (kind < COLUMNS_16):
                        _walk(table, weighed, unit, end, row, mode, mu, kept, part, 8, 128, False,
                              DTYPES)
                if KINDS & 128:
                    if kind == COLUMNS_16:
                        _walk(table, weighed, unit, end, row, mode, mu, kept, part, 64, 16, True,
                              DTYPES)
                if KINDS & 256:
                    if kind == COLUMNS:
                        _walk(table, weighed, unit, end, row, mode, mu, kept, part, 8, 128, True,
                              DTYPES)
        meet(counters)
        ended = 0
        for g in range(pid, n_groups, count):
            row = state + g * STATE_FIELDS
            ended += _step(row, tl.load(groups + g * 3), tl.load(groups + g * 3 + 1), parts, BLOCK)
        if ended > 0:
            tl.atomic_add(counters + 1, -ended)
        meet(counters)
        running = tl.load(counters + 1, volatile=True)


@triton.jit
def _write(table, weighed, first, end, row, kept, result, R: tl.constexpr, C: tl.constexpr,
           COLUMNS: tl.constexpr, DTYPES: tl.constexpr, IN_PLACE: tl.constexpr):
    """Write a segment, and measure what was written; what has no answer stays what it is."""
    mode = tl.load(row + MODE)
    keep = (mode < CONVERGED) | ((mode > STALLED) & (mode != CORNERED))
    jumps = (mode == TIED) | (mode == CORNERED)
    mu = tl.where(keep, 0.0, tl.load(row + MU))
    length = tl.load(table + LENGTH).to(tl.int32)
    dtype, step = tl.load(table + DTYPE), tl.load(table + STEP)
    shift = tl.load(table + OUT) - tl.load(table + ADDRESS)
    until = tl.where(keep, 0, length) if IN_PLACE else length
    terms = tl.zeros([R], tl.float64)
    primal = tl.zeros([R], tl.float64)
    dual = tl.zeros([R], tl.float64)
    for u in range(first, end, 1 if COLUMNS else R):
        at, weights, rows, slots = tile_of(table, weighed, u, end, R, COLUMNS)
        top, scale, back, power, beta, least = kept_of(kept, slots, rows)
        t = tl.minimum(mu * beta * scale, HUGE)
        factor = tl.load(kept + slots * KEPT_FIELDS + KEPT_FACTOR, mask=rows, other=1.0)
        factor = tl.where(keep, 1.0, factor)
        # z = a [|c| − other_t w]₊ + b [|c| − t w]₊ + one entry + another one, all in its own scale.
        a, other_t, b = factor * 0.0, t, factor
        place = tl.full([R], -1, tl.int32)
        part, other_place, other_part = factor * 0.0, place, factor * 0.0
        value = factor * 0.0
        corner = rows & (factor == 0.0)
        if tl.sum(tl.where(corner, 1, 0), 0) > 0:
            place, weight, size = corner_at(
                table, weighed, at, weights, corner, scale, power, t, least, C, DTYPES)
            part = tl.where(corner, size, 0.0)
            value = size - t * weight
        if jumps:
            moves, low_t, low_a, low_b, low_place, low_part, high_place, high_part = mixture(
                table, weighed, at, weights, rows, slots, top, scale, power, beta, least,
                tl.load(row + TIE_LOW), tl.load(row + TIE_HIGH), tl.load(row + ALPHA),
                tl.load(row + CUT), tl.load(row + LEFT), C, DTYPES)
            a, b = tl.where(moves, low_a, a), tl.where(moves, low_b, b)
            other_t = tl.where(moves, low_t, other_t)
            part = tl.where(moves, high_part, part)
            place = tl.where(moves, high_place, place)
            other_part = tl.where(moves, low_part, other_part)
            other_place = tl.where(moves, low_place, other_place)
        l1 = tl.zeros([R, C], tl.float64)
        l2 = tl.zeros([R, C], tl.float64)
        norm = tl.zeros([R, C], tl.float64)
        usual = tl.zeros([R, C], tl.float64)
        for k in range(0, length, C):
            c, w = load_pair(table, weighed, at, weights, k, rows, scale, power, C, DTYPES)
            entry = k + tl.arange(0, C)
            mask = rows[:, None] & (entry < length)[None, :]
            along = (tl.zeros(mask.shape, tl.int64) + entry[None, :]) * step
            x = load_values(at[:, None], along, mask, dtype, False, DTYPES, True)
            excess = tl.maximum(c - t[:, None] * w, 0.0)
            z = b[:, None] * excess
            z += tl.where(entry[None, :] == place[:, None], part[:, None], 0.0)
            if jumps:
                z += a[:, None] * tl.maximum(c - other_t[:, None] * w, 0.0)
                z += tl.where(entry[None, :] == other_place[:, None], other_part[:, None], 0.0)
            answer = _signed(x, z, back[:, None])
            if not IN_PLACE:
                answer = tl.where(keep, x, answer)
            put = rows[:, None] & (entry < until)[None, :]
            rounded = store_values((at + shift)[:, None], along, answer, put, dtype, False, DTYPES)
            y = tl.abs(rounded) * scale[:, None]
            l1 += y * w
            l2 += y * y
            norm += z * z
            usual += excess * excess
        square, whole = tl.sum(l2, 1), tl.sum(norm, 1)
        term = tl.where(square > 0.0, tl.sum(l1, 1) * inverse_root(square, True), least)
        value = tl.where(corner, value, tl.sqrt(tl.sum(usual, 1)))
        terms += tl.where(rows, beta * term, 0.0)
        primal += tl.where(rows, tl.sqrt(whole) * back, 0.0)
        dual += tl.where(rows, value * back, 0.0)
    tl.store(result + TERMS, tl.sum(terms, 0))
    tl.store(result + PRIMAL, tl.sum(primal, 0))
    tl.store(result + DUAL, tl.sum(dual, 0))


@triton.jit
def write_weighted(tensors, weights, segments, programs, state, kept, results,
                   KINDS: tl.constexpr, DTYPES: tl.constexpr, IN_PLACE: tl.constexpr):
    """Write the answers, and measure what was written."""
    pid = tl.program_id(0)
    for index in range(tl.load(programs + pid), tl.load(programs + pid + 1)):
        segment = segments + index * SEGMENT_FIELDS
        row = state + tl.load(segment + GROUP) * STATE_FIELDS
        tensor = tl.load(segment + TENSOR)
        table, weighed = tensors + tensor * TENSOR_FIELDS, weights + tensor * WEIGHT_FIELDS
        kind = tl.load(segment + KIND)
        unit, end = tl.load(segment + UNIT), tl.load(segment + END)
        result = results + index * VALUE_FIELDS
        if KINDS & 1:
            if kind == ROWS_16:
                _write(table, weighed, unit, end, row, kept, result, 64, 16, False, DTYPES,
                       IN_PLACE)
        if KINDS & 8:
            if (kind > ROWS_16) & (kind < COLUMNS_16):
                _write(table, weighed, unit, end, row, kept, result, 8, 128, False, DTYPES,
                       IN_PLACE)
        if KINDS & 128:
            if kind == COLUMNS_16:
                _write(table, weighed, unit, end, row, kept, result, 64, 16, True, DTYPES,
                       IN_PLACE)
        if KINDS & 256:
            if kind == COLUMNS:
                _write(table, weighed, unit, end, row, kept, result, 8, 128, True, DTYPES,
                       IN_PLACE)
