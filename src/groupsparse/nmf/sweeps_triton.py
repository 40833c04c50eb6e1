"""All sweeps over a factor on a CUDA device, in one launch.

The rows of a sweep depend on each other but its columns never meet. A program holds a few columns
of the whole factor in registers and goes through all rows as often as it is told, so that the
factor is read and written once, however many sweeps there are.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# Beyond it a column no longer fits into the registers of a program.
LARGEST_RANK = 1024
# Bytes of the factor in a warp: 64 registers of each thread, which leaves as many to compute with.
BYTES_PER_WARP = 1 << 13


def sweep_by_tiles(factor: Any, system: Any, sweeps: int, minima: Any) -> None:
    """See :func:`groupsparse.nmf.sweeps_tensor.sweep_by_rows`."""
    r, n = factor.shape
    rank = max(16, triton.next_power_of_2(r))
    warps = 1 if rank <= 128 else 4
    columns = min(64, warps * BYTES_PER_WARP // (rank * factor.element_size()))
    weights = system.weights
    work = factor.contiguous()
    kept = None if minima is None else minima.contiguous()
    with torch.cuda.device(factor.device) if factor.is_cuda else _Nothing():
        _sweep[(triton.cdiv(n, columns),)](
            work,
            system.cross.contiguous(),
            system.others.contiguous(),
            system.inverse,
            system.shift,
            system.gain,
            work if weights is None else weights.contiguous(),
            work if kept is None else kept,
            r,
            n,
            sweeps,
            n if weights is not None and len(weights) > 1 else 0,
            WEIGHTED=weights is not None,
            KEEP=kept is not None,
            RANK=rank,
            COLUMNS=columns,
            num_warps=warps,
        )
    if work is not factor:
        factor.copy_(work)
    if kept is not minima:
        minima.copy_(kept)


class _Nothing:
    """Stands in for the device's context where Triton is interpreted on the host."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sweep(  # type: ignore[no-untyped-def]
    factor,
    cross,
    others,
    inverse,
    shift,
    gain,
    weights,
    minima,
    r,
    n,
    sweeps,
    weight_stride,
    WEIGHTED: tl.constexpr,
    KEEP: tl.constexpr,
    RANK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < n
    rows = tl.arange(0, RANK)
    tile = rows.to(tl.int64)[:, None] * n + columns[None, :]
    mask = (rows < r)[:, None] & inside[None, :]
    f = tl.load(factor + tile, mask=mask, other=0.0)
    for s in range(sweeps):
        at = columns  # of row k; grows by n, so that r × n may pass 2³¹
        weight_at = columns
        last = inside & (0 * columns + s == sweeps - 1)  # no scalar: the interpreter wants vectors
        for k in range(r):
            b = tl.load(others + k * r + rows, mask=rows < r, other=0.0)
            c = tl.load(cross + at, mask=inside, other=0.0) * tl.load(inverse + k)
            c -= tl.sum(b[:, None] * f, axis=0)
            if KEEP:
                tl.store(minima + at, c, mask=last)
            lowered = tl.load(shift + k)
            if WEIGHTED:
                c -= lowered * tl.load(weights + weight_at, mask=inside, other=0.0)
                weight_at += weight_stride
            else:
                c -= lowered
            c = tl.maximum(c, 0.0) * tl.load(gain + k)
            f = tl.where(rows[:, None] == k, c[None, :], f)
            at += n
    tl.store(factor + tile, f, mask=mask)
