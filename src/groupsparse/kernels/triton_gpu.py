"""The Triton kernel: all groups of a set of CUDA tensors, solved and written in two launches.

``solve_groups`` stays on the chip until every group is done. In each round every program walks its
segments once, the programs meet, one program per group takes the Newton step, and they meet again;
nothing waits for the host. ``write_groups`` then reads and writes everything once. Sums run in a
fixed order, so the same input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

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
(TENSOR, GROUP, KIND, UNIT, END, SAMPLE_END, PART, VECTOR, SEGMENT_FIELDS) = (
    tl.constexpr(i) for i in range(9)
)
(V_TENSOR, V_GROUP, V_INDEX, V_RAW, V_RAW_END, V_PART, V_SAMPLED, SPLIT_FIELDS) = (
    tl.constexpr(i) for i in range(8)
)
# What a segment leaves behind: sums of its vectors, or of its part of a split vector.
(TOTAL, SLOPE, UPPER, FLAWS, LONGEST, PART_FIELDS) = (tl.constexpr(i) for i in range(6))
(TOP, FACTOR, TIED_COUNT, FIRST_TIED, SPLIT_VALUES) = (tl.constexpr(i) for i in range(5))
RAW_FIELDS = tl.constexpr(6)


@triton.jit
def meet(counter):
    """Wait until all programs are here. They are resident together: a cooperative launch."""
    tl.debug_barrier()
    programs = tl.num_programs(0)
    arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    goal = (arrived // programs + 1) * programs
    while tl.load(counter, volatile=True) < goal:  # looking is cheaper than adding nothing
        pass
    tl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


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
def _pass_over(segment, index, tensors, state, parts, raw, values, tops, factors,
               KINDS: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr,
               WIDE: tl.constexpr):
    """One segment in one round."""
    row = state + tl.load(segment + GROUP) * STATE_FIELDS
    mode = tl.load(row + MODE, volatile=True)
    if mode < DONE:
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
def _join(split, value, tensors, state, parts, raw, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Put a split vector's parts together, always in the same order."""
    row = state + tl.load(split + V_GROUP) * STATE_FIELDS
    mode = tl.load(row + MODE, volatile=True)
    if mode < DONE:
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
def _step_group(row, first, end, parts, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Add up a group's parts and take its next step; returns whether that was the last one."""
    ended = 0
    if tl.load(row + MODE, volatile=True) < DONE:
        total = tl.zeros([BLOCK], tl.float64)
        slope = tl.zeros([BLOCK], tl.float64)
        upper = tl.zeros([BLOCK], tl.float64)
        flaws = tl.zeros([BLOCK], tl.float64)
        longest = tl.zeros([BLOCK], tl.float64)
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
        next_step(row, tl.sum(total, 0), tl.sum(slope, 0), tl.max(upper, 0), tl.max(flaws, 0),
                  tl.max(longest, 0), WIDE)
        tl.debug_barrier()  # one thread wrote the mode, all read it
        if tl.load(row + MODE) >= DONE:
            ended = 1
    return ended


@triton.jit(do_not_specialize=["n_groups", "n_splits"])
def solve_groups(tensors, segments, programs, groups, splits, settings, state, parts, raw, values,
                 tops, factors, counters, n_groups, n_splits,
                 KINDS: tl.constexpr, ALIGNED: tl.constexpr, DTYPES: tl.constexpr,
                 WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Find every group's multiplier. ``counters``: arrivals, and groups that are not done yet."""
    pid = tl.program_id(0)
    count = tl.num_programs(0)
    for g in range(pid, n_groups, count):
        setting = settings + g * SETTINGS
        row = state + g * STATE_FIELDS
        for k in tl.static_range(2, SETTINGS):  # LEVEL to NORMAL
            tl.store(row + k, tl.load(setting + k))
        begin_search(row, tl.load(setting), tl.load(setting + 1), tl.load(groups + g * 3 + 2) != 0)
    if pid == 0:
        tl.store(counters + 1, n_groups)
    meet(counters)
    first, last = tl.load(programs + pid), tl.load(programs + pid + 1)
    running = n_groups.to(tl.int64)
    while running > 0:
        for index in range(first, last):
            _pass_over(segments + index * SEGMENT_FIELDS, index, tensors, state, parts, raw,
                       values, tops, factors, KINDS, ALIGNED, DTYPES, WIDE)
        meet(counters)
        if KINDS & 64:
            for v in range(pid, n_splits, count):
                _join(splits + v * SPLIT_FIELDS, values + v * SPLIT_VALUES, tensors, state, parts,
                      raw, WIDE, BLOCK)
            meet(counters)
        ended = 0
        for g in range(pid, n_groups, count):
            row = state + g * STATE_FIELDS
            ended += _step_group(row, tl.load(groups + g * 3), tl.load(groups + g * 3 + 1), parts,
                                 WIDE, BLOCK)
        if ended > 0:
            tl.atomic_add(counters + 1, -ended)
        meet(counters)
        running = tl.load(counters + 1, volatile=True)


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
