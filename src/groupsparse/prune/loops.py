"""Compiled loops over entries on a CPU, seen as integers of their own size.

So no arithmetic of floats is involved: one loop serves every dtype, and a NaN is an entry like any
other.
"""

from __future__ import annotations

from ..kernels._loops import compiled


@compiled()
def clear(entries, bits):  # type: ignore[no-untyped-def]
    """Set the entries to zero whose bit is 0: bit i of byte j speaks of entry 8j + i."""
    whole = entries.size // 8
    for j in range(whole):
        byte = bits[j]
        for i in range(8):  # no branch, so that eight entries are one step
            entries[8 * j + i] &= -((byte >> i) & 1)
    for k in range(8 * whole, entries.size):
        entries[k] &= -((bits[whole] >> (k - 8 * whole)) & 1)
