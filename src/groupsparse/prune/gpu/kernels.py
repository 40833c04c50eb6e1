"""Triton kernels over a table of tensors: select by radix, cut and pack, and zero by a mask.

A program owns one block of one tensor, in row-major order whatever the strides are: ties go in that
order, and so do the bits of a mask. The selection never leaves the device: histograms of eight bits
of the keys at a time, and the last program of a group chooses its bucket.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...kernels.triton_rounds import is_last

# The columns of a table of tensors; see `cutting`.
COLUMNS = tl.constexpr(18)
SCORES = tl.constexpr(0)  # an address, then the six numbers of a layout
PARAMETER = tl.constexpr(7)
ENTRIES = tl.constexpr(14)
BYTES = tl.constexpr(15)  # where the tensor's bits begin
GROUP = tl.constexpr(16)
FIRST = tl.constexpr(17)  # the first program that works on the tensor

BINS = tl.constexpr(256)
# What a group knows of its cutoff: the leading bits, how many entries are still to go, and whether
# only some of the ties go.
STATE = tl.constexpr(3)


@triton.jit
def _tensor(table, tensors, program, PADDED: tl.constexpr):
    """Which tensor a program works on: the last one that begins at or before it."""
    each = tl.arange(0, PADDED)
    begins = tl.load(table + each * COLUMNS + FIRST, mask=each < tensors, other=1 << 62)
    return tl.sum((begins <= program).to(tl.int32), axis=0) - 1


@triton.jit
def _places(row, entry):
    """Where entries lie relative to the address that stands before the layout."""
    places = entry
    if tl.load(row + 6) == 0:
        middle, inner = tl.load(row + 1).to(tl.int32), tl.load(row + 2).to(tl.int32)
        outer, rest = entry // (middle * inner), entry % (middle * inner)
        places = (
            outer * tl.load(row + 3).to(tl.int32)
            + (rest // inner) * tl.load(row + 4).to(tl.int32)
            + (rest % inner) * tl.load(row + 5).to(tl.int32)
        )
    return places


@triton.jit
def _keys(row, entry, inside, ABSOLUTE: tl.constexpr, DTYPE: tl.constexpr):
    """Unsigned integers in the order of the scores, and which of the scores are not finite."""
    address = tl.load(row + SCORES).to(tl.pointer_type(DTYPE))
    score = tl.load(address + _places(row + SCORES, entry), mask=inside, other=0.0)
    bits = score.to(tl.float32).to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    if ABSOLUTE:
        keys = size.to(tl.uint32, bitcast=True)
    else:
        # Negative numbers count down; −0.0 and 0.0 are one and the same.
        ordered = tl.where(bits < 0, -size, size)
        keys = ordered.to(tl.uint32, bitcast=True) ^ 0x80000000
    return keys, inside & (size >= 0x7F800000)


@triton.jit
def _choose(counts, state):
    """Extend the leading bits of one group's cutoff by the bucket in which it lies."""
    bins = tl.arange(0, BINS)
    own = tl.load(counts + bins, volatile=True)  # others wrote it while this program ran
    begin, wanted = tl.load(state), tl.load(state + 1)
    below = tl.cumsum(own.to(tl.int64), axis=0) < wanted
    bucket = tl.sum(below.to(tl.int64), axis=0)
    wanted -= tl.sum(tl.where(below, own, 0).to(tl.int64), axis=0)
    ties = tl.sum(tl.where(bins == bucket, own, 0).to(tl.int64), axis=0)
    tl.store(state, begin * BINS + bucket)
    tl.store(state + 1, wanted)
    tl.store(state + 2, (ties != wanted).to(tl.int64))


@triton.jit
def count(
    table,
    tensors,
    counts,
    arrived,
    group_begins,
    groups,
    states,
    found,
    SHIFT: tl.constexpr,
    TOP: tl.constexpr,
    ABSOLUTE: tl.constexpr,
    DTYPE: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the digit at SHIFT of all keys that begin like their group's cutoff, and choose it.

    The last program of a group to get here sees all counts of the group: it extends the cutoff.
    """
    program = tl.program_id(0)
    row = table + _tensor(table, tensors, program, PADDED) * COLUMNS
    block = program - tl.load(row + FIRST).to(tl.int32)
    entry = block * BLOCK + tl.arange(0, BLOCK)
    wanted = entry < tl.load(row + ENTRIES).to(tl.int32)
    keys, infinite = _keys(row, entry, wanted, ABSOLUTE, DTYPE)
    group = tl.load(row + GROUP)
    if SHIFT == TOP:
        if tl.max(infinite.to(tl.int32), axis=0) > 0:
            tl.store(found, 1)
    else:
        begin = tl.load(states + group * STATE).to(tl.uint32)
        wanted = wanted & ((keys >> (SHIFT + 8)) == begin)
    total = tl.sum(wanted.to(tl.int32), axis=0)
    if total > 0:  # after the first digit few blocks hold any
        digit = tl.where(wanted, (keys >> SHIFT) & 0xFF, 0).to(tl.int32)
        bins = tl.arange(0, BINS)
        own = tl.histogram(digit, BINS) - tl.where(bins == 0, BLOCK - total, 0)
        # Relaxed: what orders them is the one addition by which the program reports.
        tl.atomic_add(counts + group * BINS + bins, own, mask=own > 0, sem="relaxed")
    last = tl.num_programs(0)
    if group + 1 < groups:
        last = tl.load(group_begins + group + 1).to(tl.int32)
    programs = last - tl.load(group_begins + group).to(tl.int32)
    if is_last(arrived + group, programs):
        _choose(counts + group * BINS, states + group * STATE)


@triton.jit
def count_ties(
    table,
    tensors,
    states,
    ties,
    ABSOLUTE: tl.constexpr,
    DTYPE: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many entries of each block equal the cutoff, where not all of them go."""
    program = tl.program_id(0)
    row = table + _tensor(table, tensors, program, PADDED) * COLUMNS
    state = states + tl.load(row + GROUP) * STATE
    own = 0
    if tl.load(state + 2) != 0:
        block = program - tl.load(row + FIRST).to(tl.int32)
        entry = block * BLOCK + tl.arange(0, BLOCK)
        inside = entry < tl.load(row + ENTRIES).to(tl.int32)
        keys, _ = _keys(row, entry, inside, ABSOLUTE, DTYPE)
        own = tl.sum((inside & (keys == tl.load(state).to(tl.uint32))).to(tl.int32), axis=0)
    tl.store(ties + program, own)


@triton.jit
def cut(
    table,
    tensors,
    states,
    ties,
    earlier,
    group_begins,
    found,
    bits,
    ABSOLUTE: tl.constexpr,
    DTYPE: tl.constexpr,
    PARAMETERS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Zero what goes, write the bits of what stays, count what stays and is not zero."""
    if tl.load(found) == 0:  # not a single score that is not finite
        program = tl.program_id(0)
        tensor = _tensor(table, tensors, program, PADDED)
        row = table + tensor * COLUMNS
        block = program - tl.load(row + FIRST).to(tl.int32)
        entries = tl.load(row + ENTRIES).to(tl.int32)
        entry = block * BLOCK + tl.arange(0, BLOCK)
        inside = entry < entries
        keys, _ = _keys(row, entry, inside, ABSOLUTE, DTYPE)
        group = tl.load(row + GROUP)
        state = states + group * STATE
        cutoff = tl.load(state).to(tl.uint32)
        tied = inside & (keys == cutoff)
        if tl.load(state + 2) != 0:
            # `earlier` counts this block's ties as well, and those of the groups before.
            first = tl.load(group_begins + group)
            others = tl.load(earlier + first) - tl.load(ties + first)
            before = tl.load(earlier + program) - tl.load(ties + program) - others
            ranks = before + tl.cumsum(tied.to(tl.int32), axis=0)
            tied = tied & (ranks <= tl.load(state + 1))
        gone = inside & ((keys < cutoff) | tied)
        address = tl.load(row + PARAMETER).to(tl.pointer_type(PARAMETERS))
        places = address + _places(row + PARAMETER, entry)
        nonzero = inside & (tl.load(places, mask=inside, other=0.0).to(tl.float32) != 0)
        alive = tl.sum((nonzero & (gone == 0)).to(tl.int32), axis=0)
        tl.atomic_add(found + 1 + tensor, alive)
        tl.store(places, tl.zeros((BLOCK,), tl.float32).to(PARAMETERS), mask=gone)
        kept = tl.reshape((inside & (gone == 0)).to(tl.int32), (BLOCK // 8, 8))
        packed = tl.sum(kept << tl.arange(0, 8)[None, :], axis=1)
        byte = block * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
        target = bits + tl.load(row + BYTES) + byte
        tl.store(target, packed.to(tl.uint8), mask=byte < (entries + 7) // 8)


@triton.jit
def zero(
    values, bits, entries, middle, inner, outer_stride, middle_stride, inner_stride,
    PLAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Zero the entries of one tensor whose bit is 0; the others are not even read."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < entries
    byte = tl.load(bits + entry // 8, mask=inside, other=255).to(tl.int32)
    gone = inside & (((byte >> (entry % 8)) & 1) == 0)
    places = entry
    if not PLAIN:
        outer, rest = entry // (middle * inner), entry % (middle * inner)
        places = (
            outer * outer_stride + (rest // inner) * middle_stride + (rest % inner) * inner_stride
        )
    nothing = tl.zeros((BLOCK,), tl.float32).to(values.dtype.element_ty)
    tl.store(values + places, nothing, mask=gone)


@triton.jit
def zero_all(table, tensors, DTYPE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr):
    """`zero` for every tensor of a table, in which the bits of each have their own address."""
    program = tl.program_id(0)
    row = table + _tensor(table, tensors, program, PADDED) * COLUMNS
    entry = (program - tl.load(row + FIRST).to(tl.int32)) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < tl.load(row + ENTRIES).to(tl.int32)
    bits = tl.load(row + BYTES).to(tl.pointer_type(tl.uint8))
    byte = tl.load(bits + entry // 8, mask=inside, other=255).to(tl.int32)
    gone = inside & (((byte >> (entry % 8)) & 1) == 0)
    address = tl.load(row + PARAMETER).to(tl.pointer_type(DTYPE))
    places = address + _places(row + PARAMETER, entry)
    tl.store(places, tl.zeros((BLOCK,), tl.float32).to(DTYPE), mask=gone)
