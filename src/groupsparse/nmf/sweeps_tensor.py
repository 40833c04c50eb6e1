"""The sweeps of :mod:`groupsparse.nmf.sweeps` over tensors, without waiting for the device.

A tensor in the host's memory is swept by the compiled loop, in place. On a CUDA device one Triton
kernel makes all sweeps; elsewhere a row takes two calls, a product and a cut. Both work on the
scaled system: with A = C/G_kk and B = G/G_kk without its diagonal, the minimum of row k is
A_k − B_k F.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

Tensor = torch.Tensor

# Sweeps after which the host asks whether all blocks have been left. A-HALS makes fewer: for it the
# device is never waited for.
ASK_EVERY = 32


class System(NamedTuple):
    """What a sweep needs besides the factor; row k is set to gain_k [A_k − B_k F − shift_k w]₊."""

    cross: Tensor  # C, r × n
    inverse: Tensor  # 1/G_kk, 0 where G_kk = 0
    others: Tensor  # B, r × r; a row without energy has −1 on the diagonal, and stays what it is
    shift: Tensor
    gain: Tensor
    weights: Tensor | None


def system_of(
    cross: Tensor, gram: Tensor, shift: Tensor, gain: Tensor, weights: Tensor | None
) -> System:
    """Scale the system of a factor."""
    own = gram.diagonal()
    live = (own > 0).to(gram.dtype)
    inverse = live / own.clamp(min=torch.finfo(gram.dtype).tiny)
    others = gram * inverse[:, None]
    others.diagonal().copy_(live - 1)
    return System(cross, inverse, others, shift, gain, weights)


def sweep_tensor(
    factor: Tensor,
    system: System,
    own: Tensor,
    *,
    sweeps: int,
    delta: float,
    block: int,
    minima: Tensor | None,
) -> None:
    """Sweep in place; a block of columns that moved too little in a sweep is left, as on the host.

    ``own`` is the diagonal of G, ``block`` the number of columns that are left together.
    """
    make = _sweeper(factor)
    if delta == 0.0:
        make(factor, system, sweeps, minima)
        return
    n = factor.shape[1]
    blocks = -(-n // block)
    going = torch.ones(blocks, dtype=torch.bool, device=factor.device)
    first = None
    for done in range(1, sweeps + 1):
        before = factor.clone()
        make(factor, system, 1, None)
        change = ((factor - before).square_() * own[:, None]).sum(0, dtype=torch.float64)
        moved = pad(change, (0, blocks * block - n)).view(blocks, block).sum(1)
        factor.copy_(torch.where(going.repeat_interleave(block)[:n], factor, before))
        first = moved if first is None else first
        going &= moved > delta * first
        if done % ASK_EVERY == 0 and not bool(going.any()):
            return


def sweep_by_rows(factor: Tensor, system: System, sweeps: int, minima: Tensor | None) -> None:
    """All sweeps, two calls for each row."""
    gain, shift = system.gain[:, None], system.shift[:, None]
    lowered = shift if system.weights is None else shift * system.weights
    # Shift and gain go into the system: what is left is [· − · F]₊.
    own_part = (system.cross * system.inverse[:, None] - lowered) * gain
    others = system.others * gain
    before_cut = torch.empty_like(factor) if minima is None else minima
    for _ in range(sweeps):
        for k in range(len(factor)):
            torch.addmv(own_part[k], factor.T, others[k], alpha=-1, out=before_cut[k])
            torch.clamp(before_cut[k], min=0, out=factor[k])
    if minima is not None:
        minima.div_(gain).add_(lowered)


def _sweeper(factor: Tensor) -> Any:
    kernel = _triton_kernel() if factor.device.type == "cuda" else None
    if kernel is None or len(factor) > kernel.LARGEST_RANK:
        return sweep_by_rows
    return kernel.sweep_by_tiles


@cache
def _triton_kernel() -> Any:
    """The module of the kernel; None where Triton is not installed."""
    try:
        from . import sweeps_triton
    except ImportError:
        return None
    return sweeps_triton
