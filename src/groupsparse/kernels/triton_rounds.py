"""How the programs of a kernel wait for each other: all of them once, then group by group.

The programs that walk a group's vectors count themselves when they are through; the last one takes
the group's next step and opens its next round. So a round costs one addition and one look at a
number, and nobody waits for a group that is none of its own. All programs must be resident
together: a cooperative launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

ENDED = tl.constexpr(1 << 30)  # the round of a group that is done


@triton.jit
def meet(counter):
    """Wait until all programs are here."""
    tl.debug_barrier()
    programs = tl.num_programs(0)
    arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    goal = (arrived // programs + 1) * programs
    while tl.load(counter, volatile=True) < goal:  # looking is cheaper than adding nothing
        pass
    tl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def wait_for(round_, number):
    """Wait until a group's round has begun; returns the one that it is in."""
    while tl.load(round_, volatile=True) < number:
        pass
    reached = tl.atomic_add(round_, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()
    return reached


@triton.jit
def is_last(counter, expected):
    """Count this program; whether all that are expected have been here, since the last time."""
    tl.debug_barrier()
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return (before + 1) % expected == 0


@triton.jit
def open_round(round_, ended):
    """Let everybody see what this program decided for a group."""
    tl.debug_barrier()
    tl.atomic_add(round_, tl.where(ended, ENDED, 1), sem="release", scope="gpu")
