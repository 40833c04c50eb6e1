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
    G_ARRIVALS,
    GROUP,
    GROUP_FIELDS,
    KIND,
    LAST,
    PART,
    PART_FIELDS,
    ROWS_16,
    SEGMENT_FIELDS,
    TENSOR,
    UNIT,
    _store_part,
    added_up,
    close_round,
    take_settings,
)
from .triton_jumps import mixture, weighted_gains
from .triton_rounds import ENDED, is_last, meet, wait_for
from .triton_search import (
    ALPHA,
    CONVERGED,
    CUT,
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


@triton.jit(do_not_specialize=["n_groups"])
def solve_weighted(tensors, weights, segments, programs, groups, settings, state, parts, kept,
                   counters, n_groups, KINDS: tl.constexpr, DTYPES: tl.constexpr,
                   BLOCK: tl.constexpr):
    """Find every group's multiplier. ``counters``: see ``solve_groups``."""
    pid = tl.program_id(0)
    rounds, arrivals = counters + 1, counters + 1 + n_groups
    for i in range(pid, n_groups, tl.num_programs(0)):
        setting = settings + i * SETTINGS
        take_settings(setting, state + i * STATE_FIELDS, rounds + i)
        begin_weighted(state + i * STATE_FIELDS, tl.load(setting), tl.load(setting + 1))
    meet(counters)
    first, last = tl.load(programs + pid), tl.load(programs + pid + 1)
    number, busy = 0, True
    while busy:
        busy = False
        before, reached = tl.full([], -1, tl.int64), tl.full([], 0, tl.int64)
        for index in range(first, last):
            segment = segments + index * SEGMENT_FIELDS
            g = tl.load(segment + GROUP)
            if g != before:
                reached = wait_for(rounds + g, number)
            before = g
            if reached < ENDED:
                busy = True
                row, group = state + g * STATE_FIELDS, groups + g * GROUP_FIELDS
                mode = tl.load(row + MODE, volatile=True)
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
                if tl.load(segment + LAST) != 0:
                    if is_last(arrivals + g, tl.load(group + G_ARRIVALS)):
                        total, slope, upper, flaws, longest, tops = added_up(group, parts, BLOCK)
                        # The sum of the last ones is that of the first look; see ``_walk``.
                        next_weighted_step(row, total, slope, upper, flaws, longest, tops)
                        close_round(rounds + g, row)
        number += 1


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
