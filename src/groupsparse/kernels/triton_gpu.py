"""The Triton kernel: all groups of a set of CUDA tensors, solved and written in two launches.

``solve_groups`` stays on the chip until every group is done. In each round every program walks its
segments once, and the last one of a group takes the group's Newton step; nothing waits for the
host. ``write_groups`` then reads and writes everything once. Sums run in a fixed order, so the same
input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_rounds import ENDED, is_last, meet, open_round, wait_for
from .triton_search import (
    ALPHA,
    CONVERGED,
    DONE,
    FIRST,
    MODE,
    MU,
    SAMPLE,
    SETTINGS,
    STALLED,
    STATE_FIELDS,
    TIE_HIGH,
    TIE_LOW,
    TIED,
    TIES,
    begin_search,
    next_step,
)
from .triton_sums import (
    FLAW_BAD,
    FLAW_ODD,
    LENGTH,
    LIMIT,
    TENSOR_FIELDS,
    segment_sums,
    segment_ties,
    split_sums,
    tied_gain,
)
from .triton_tiles import LEAST, MOST, finished_sums, power_of_two
from .triton_write import VALUE_FIELDS, segment_write, split_write

# Kinds of segments, and the tiles that they are walked in; see ``device/tables.py``.
(ROWS_16, ROWS_64, ROWS_128, ROWS_LONG, ROWS_LONGER, ROWS_LOOSE, SPLIT, COLUMNS_16, COLUMNS) = (
    tl.constexpr(i) for i in range(9)
)
SPLIT_STEP = tl.constexpr(1024)
SIXTEEN_BITS = tl.constexpr(2 | 4)  # dtypes: with these alone a load of 16 bytes has 8 entries

# Columns of the table of segments, and of that of split vectors.
(TENSOR, GROUP, KIND, UNIT, END, SAMPLE_END, PART, VECTOR, LAST, SEGMENT_FIELDS) = (
    tl.constexpr(i) for i in range(10)
)
(G_PART, G_PART_END, G_SAMPLED, G_ARRIVALS, GROUP_FIELDS) = (tl.constexpr(i) for i in range(5))
(V_TENSOR, V_GROUP, V_INDEX, V_RAW, V_RAW_END, V_PART, V_SAMPLED, SPLIT_FIELDS) = (
    tl.constexpr(i) for i in range(8)
)
# What a segment leaves behind: sums of its vectors, or of its part of a split vector.
(TOTAL, SLOPE, UPPER, FLAWS, LONGEST, PART_FIELDS) = (tl.constexpr(i) for i in range(6))
(TOP, FACTOR, TIED_COUNT, FIRST_TIED, SPLIT_VALUES) = (tl.constexpr(i) for i in range(5))
RAW_FIELDS = tl.constexpr(6)


@triton.jit
def _walk(table, kind, unit, end, mu, unscaled, tops, factors,
          KINDS: tl.constexpr, DTYPES: tl.constexpr, WIDE: tl.constexpr):
    """The sums of a segment by its kind; only the kinds that occur are compiled."""
    LONG: tl.constexpr = 256 if (SIXTEEN_BITS & DTYPES) == DTYPES else 128
    total, slope, upper, flaws, longest = mu * 0.0, mu * 0.0, mu * 0.0, mu * 0.0, mu * 0.0
    if KINDS & 1:
        if kind == ROWS_16:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                128, 16, True, False, False, DTYPES, WIDE)
    if KINDS & 2:
        if kind == ROWS_64:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                16, 64, True, False, True, DTYPES, WIDE)
    if KINDS & 4:
        if kind == ROWS_128:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                8, 128, True, False, True, DTYPES, WIDE)
    if KINDS & 8:
        if kind == ROWS_LONG:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                8, LONG, False, False, True, DTYPES, WIDE)
    if KINDS & 16:
        if kind == ROWS_LONGER:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                2, 512, False, False, True, DTYPES, WIDE)
    if KINDS & 32:
        if kind == ROWS_LOOSE:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                16, 32, False, False, False, DTYPES, WIDE)
    if KINDS & 128:
        if kind == COLUMNS_16:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                128, 16, True, True, False, DTYPES, WIDE)
    if KINDS & 256:
        if kind == COLUMNS:
            total, slope, upper, flaws, longest = segment_sums(
                table, unit, end, mu, unscaled, tops, factors,
                8, 128, False, True, False, DTYPES, WIDE)
    return total, slope, upper, flaws, longest


@triton.jit
def _store_part(part, total, slope, upper, flaws, longest):
    tl.store(part + TOTAL, total)
    tl.store(part + SLOPE, slope)
    tl.store(part + UPPER, upper)
    tl.store(part + FLAWS, flaws)
    tl.store(part + LONGEST, longest)


@triton.jit
def _pass_over(segment, index, tensors, row, parts, raw, values, tops, factors,
               KINDS: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr,
               WIDE: tl.constexpr):
    """One segment in one round."""
    mode = tl.load(row + MODE, volatile=True)
    mu = tl.load(row + MU, volatile=True)
    table = tensors + tl.load(segment + TENSOR) * TENSOR_FIELDS
    kind = tl.load(segment + KIND)
    unit = tl.load(segment + UNIT)
    end = tl.load(segment + (SAMPLE_END if mode == SAMPLE else END))
    part = parts + tl.load(segment + PART) * PART_FIELDS
    unscaled = (mode <= FIRST).to(tl.int32)
    if (KINDS & 64 != 0) and (kind == SPLIT):
        split = tl.load(segment + VECTOR)
        top = tl.load(values + split * SPLIT_VALUES + TOP, volatile=True)
        index_in_tensor = tl.load(segment + PART)
        s, q, n, most, m, where = split_sums(
            table, index_in_tensor, unit, end, mu, unscaled, top, SPLIT_STEP,
            ALIGNED, DTYPES, WIDE)
        mine = raw + index * RAW_FIELDS
        tl.store(mine, s)
        tl.store(mine + 1, q)
        tl.store(mine + 2, n)
        tl.store(mine + 3, most.to(tl.float64))
        tl.store(mine + 4, m.to(tl.float64))
        tl.store(mine + 5, where.to(tl.float64))
    elif mode == TIES:
        low, high = tl.load(row + TIE_LOW), tl.load(row + TIE_HIGH)
        alpha = tl.load(row + ALPHA, volatile=True)
        if (KINDS & 384 != 0) and (kind >= COLUMNS_16):
            if kind == COLUMNS_16:
                gain = segment_ties(table, unit, end, low, high, alpha, 128, 16, True,
                                    DTYPES, WIDE)
            else:
                gain = segment_ties(table, unit, end, low, high, alpha, 8, 128, True,
                                    DTYPES, WIDE)
        else:
            gain = segment_ties(table, unit, end, low, high, alpha, 16, 128, False,
                                DTYPES, WIDE)
        _store_part(part, gain, 0.0, 0.0, 0.0, 0.0)
    else:
        total, slope, upper, flaws, longest = _walk(
            table, kind, unit, end, mu, unscaled, tops, factors, KINDS, DTYPES, WIDE)
        _store_part(part, total, slope, upper, flaws, longest)


@triton.jit
def _join(split, value, tensors, row, parts, raw, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Put a split vector's parts together, always in the same order."""
    mode = tl.load(row + MODE, volatile=True)
    mu = tl.load(row + MU, volatile=True)
    table = tensors + tl.load(split + V_TENSOR) * TENSOR_FIELDS
    length = tl.load(table + LENGTH).to(tl.float64)
    limit = tl.load(table + LIMIT).to(tl.float64, bitcast=True)
    beta = 1.0 / (tl.sqrt(length) - 1.0)
    first, end = tl.load(split + V_RAW), tl.load(split + V_RAW_END)
    s, q, n = mu * 0.0, mu * 0.0, mu * 0.0
    top, m, where = mu * 0.0, mu * 0.0, mu * 0.0 + 1e300
    bad = 0
    for k in range(first, end, BLOCK):
        at = k + tl.arange(0, BLOCK)
        mask = at < end
        mine = raw + at * RAW_FIELDS
        s += tl.sum(tl.load(mine, mask=mask, other=0.0, volatile=True), 0)
        q += tl.sum(tl.load(mine + 1, mask=mask, other=0.0, volatile=True), 0)
        n += tl.sum(tl.load(mine + 2, mask=mask, other=0.0, volatile=True), 0)
        tops = tl.load(mine + 3, mask=mask, other=0.0, volatile=True)
        bad += tl.sum(tl.where(tops < float("inf"), 0, 1), 0)
        top = tl.maximum(top, tl.max(tl.where(tops < float("inf"), tops, 0.0), 0))
        m += tl.sum(tl.load(mine + 4, mask=mask, other=0.0, volatile=True), 0)
        found = tl.load(mine + 5, mask=mask, other=1e300, volatile=True)
        where = tl.minimum(where, tl.min(found, 0))
    rows = tl.full([1], 1, tl.int1)
    one = tl.full([1], 1.0, tl.float64)
    scale, back = one, one
    unscaled = mode <= FIRST
    if not unscaled:
        old = tl.load(value + TOP, volatile=True) * one
        scale, back = power_of_two(old.to(tl.float64 if WIDE else tl.float32), WIDE)
        scale, back = scale.to(tl.float64), back.to(tl.float64)
    ratio = one
    if mode == SAMPLE:
        ratio = one * length / tl.load(split + V_SAMPLED).to(tl.float64)
    s_, q_, n_ = s * ratio, q * ratio, n * ratio
    part = parts + tl.load(split + V_PART) * PART_FIELDS
    if mode == TIES:
        low, high = tl.load(row + TIE_LOW), tl.load(row + TIE_HIGH)
        alpha = tl.load(row + ALPHA, volatile=True)
        gain = tied_gain(m * one, top * one, low, high, alpha, beta, rows)
        _store_part(part, tl.sum(gain, 0), 0.0, 0.0, 0.0, 0.0)
    else:
        t = mu * beta * scale
        term, steeper, factor = finished_sums(s_, q_, n_, t, True)
        total, slope = beta * term, beta * beta * steeper * scale
        longest = tl.sum((top * one - t * back) * factor, 0) * limit
        odd = (top > 0.0) & ((top < LEAST) | (top > MOST))
        # A corner must know its largest entry before it can say where it is.
        corner = (tl.sum(factor, 0) == 0.0) & (mode == FIRST)
        flaws = tl.where((odd & unscaled) | corner, FLAW_ODD, 0.0)
        flaws = tl.where(bad > 0, FLAW_BAD, flaws).to(tl.float64)
        _store_part(part, tl.sum(total, 0), tl.sum(slope, 0), top / beta, flaws, longest)
        tl.store(value + FACTOR, tl.sum(factor, 0))
    tl.store(value + TOP, top)
    tl.store(value + TIED_COUNT, m)
    tl.store(value + FIRST_TIED, where)


@triton.jit
def added_up(group, parts, BLOCK: tl.constexpr):
    """The parts of a group, always added in the same order; of the longest also the sum."""
    total = tl.zeros([BLOCK], tl.float64)
    slope = tl.zeros([BLOCK], tl.float64)
    upper = tl.zeros([BLOCK], tl.float64)
    flaws = tl.zeros([BLOCK], tl.float64)
    longest = tl.zeros([BLOCK], tl.float64)
    sizes = tl.zeros([BLOCK], tl.float64)
    end = tl.load(group + G_PART_END)
    for k in range(tl.load(group + G_PART), end, BLOCK):
        at = k + tl.arange(0, BLOCK)
        mask = at < end
        part = parts + at * PART_FIELDS
        total += tl.load(part + TOTAL, mask=mask, other=0.0, volatile=True)
        slope += tl.load(part + SLOPE, mask=mask, other=0.0, volatile=True)
        upper = tl.maximum(upper, tl.load(part + UPPER, mask=mask, other=0.0, volatile=True))
        flaws = tl.maximum(flaws, tl.load(part + FLAWS, mask=mask, other=0.0, volatile=True))
        more = tl.load(part + LONGEST, mask=mask, other=0.0, volatile=True)
        longest = tl.maximum(longest, more)
        sizes += more
    return (
        tl.sum(total, 0), tl.sum(slope, 0), tl.max(upper, 0), tl.max(flaws, 0), tl.max(longest, 0),
        tl.sum(sizes, 0),
    )


@triton.jit
def close_round(round_, row):
    """Let everybody see a group's step."""
    tl.debug_barrier()  # one thread wrote the mode, all read it
    open_round(round_, tl.load(row + MODE) >= DONE)


@triton.jit
def take_settings(setting, row, round_):
    """What a group has to know of the call; its first round begins."""
    for k in tl.static_range(2, SETTINGS):  # LEVEL to NORMAL
        tl.store(row + k, tl.load(setting + k))
    tl.store(round_, 0)


@triton.jit(do_not_specialize=["n_groups"])
def solve_groups(tensors, segments, programs, groups, splits, settings, state, parts, raw, values,
                 tops, factors, counters, n_groups,
                 KINDS: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr,
                 WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Find every group's multiplier.

    ``counters``: of the meeting, each group's round, the arrivals of each group and each split.
    """
    pid = tl.program_id(0)
    rounds, arrivals = counters + 1, counters + 1 + n_groups
    for i in range(pid, n_groups, tl.num_programs(0)):
        setting, sampled = settings + i * SETTINGS, tl.load(groups + i * GROUP_FIELDS + G_SAMPLED)
        take_settings(setting, state + i * STATE_FIELDS, rounds + i)
        begin_search(state + i * STATE_FIELDS, tl.load(setting), tl.load(setting + 1), sampled != 0)
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
                _pass_over(segment, index, tensors, row, parts, raw, values, tops, factors,
                           KINDS, ALIGNED, DTYPES, WIDE)
                complete = tl.load(segment + LAST) != 0
                if KINDS & 64:
                    if tl.load(segment + KIND) == SPLIT:
                        v = tl.load(segment + VECTOR)
                        split = splits + v * SPLIT_FIELDS
                        pieces = tl.load(split + V_RAW_END) - tl.load(split + V_RAW)
                        complete = is_last(arrivals + n_groups + v, pieces)
                        if complete:
                            _join(split, values + v * SPLIT_VALUES, tensors, row, parts, raw,
                                  WIDE, BLOCK)
                if complete:
                    if is_last(arrivals + g, tl.load(group + G_ARRIVALS)):
                        total, slope, upper, flaws, longest, _ = added_up(group, parts, BLOCK)
                        next_step(row, total, slope, upper, flaws, longest, WIDE)
                        close_round(rounds + g, row)
        number += 1


@triton.jit
def write_groups(tensors, segments, programs, state, values, tops, factors, results,
                 KINDS: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr,
                 WIDE: tl.constexpr, IN_PLACE: tl.constexpr):
    """Write the answers, and measure what was written."""
    LONG: tl.constexpr = 256 if (SIXTEEN_BITS & DTYPES) == DTYPES else 128
    pid = tl.program_id(0)
    for index in range(tl.load(programs + pid), tl.load(programs + pid + 1)):
        segment = segments + index * SEGMENT_FIELDS
        row = state + tl.load(segment + GROUP) * STATE_FIELDS
        mode = tl.load(row + MODE)
        mu = tl.load(row + MU)
        table = tensors + tl.load(segment + TENSOR) * TENSOR_FIELDS
        kind = tl.load(segment + KIND)
        unit, end = tl.load(segment + UNIT), tl.load(segment + END)
        result = results + index * VALUE_FIELDS
        low, high, alpha = tl.load(row + TIE_LOW), tl.load(row + TIE_HIGH), tl.load(row + ALPHA)
        keep = ((mode < CONVERGED) | (mode > STALLED)).to(tl.int32)
        alpha = tl.where(mode == TIED, alpha, 1.0)
        if KINDS & 64:
            if kind == SPLIT:
                value = values + tl.load(segment + VECTOR) * SPLIT_VALUES
                split_write(table, tl.load(segment + PART), unit, end, mu, keep, low, high, alpha,
                            value, result, SPLIT_STEP, ALIGNED, DTYPES, WIDE, IN_PLACE)
        if KINDS & 1:
            if kind == ROWS_16:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              128, 16, True, False, False, DTYPES, WIDE, IN_PLACE)
        if KINDS & 2:
            if kind == ROWS_64:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              16, 64, True, False, True, DTYPES, WIDE, IN_PLACE)
        if KINDS & 4:
            if kind == ROWS_128:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              8, 128, True, False, True, DTYPES, WIDE, IN_PLACE)
        if KINDS & 8:
            if kind == ROWS_LONG:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              8, LONG, False, False, True, DTYPES, WIDE, IN_PLACE)
        if KINDS & 16:
            if kind == ROWS_LONGER:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              2, 512, False, False, True, DTYPES, WIDE, IN_PLACE)
        if KINDS & 32:
            if kind == ROWS_LOOSE:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              16, 32, False, False, False, DTYPES, WIDE, IN_PLACE)
        if KINDS & 128:
            if kind == COLUMNS_16:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              128, 16, True, True, False, DTYPES, WIDE, IN_PLACE)
        if KINDS & 256:
            if kind == COLUMNS:
                segment_write(table, unit, end, mu, keep, low, high, alpha, tops, factors, result,
                              8, 128, False, True, False, DTYPES, WIDE, IN_PLACE)
