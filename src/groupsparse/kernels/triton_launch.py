"""Launching the Triton kernels: how many programs fit on the chip, and the two calls."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import triton

from .triton_gpu import solve_groups, write_groups

WARPS = int(os.environ.get('GS_WARPS','4'))
REGISTERS = int(os.environ.get('GS_REGS','128'))
PER_UNIT = int(os.environ.get('GS_PER','4'))  # programs on one multiprocessor, if their registers leave room
BLOCK = 256
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def resident_programs(device: torch.device, shapes: Any, dtypes: int, wide: bool) -> int:
    """How many programs may meet on the chip: all of them must be there at once."""
    if INTERPRETED:
        return 1
    return multiprocessors(device) * (2 if wide else PER_UNIT)


def run(plan: Any) -> None:
    """Queue both launches for a plan."""
    tables = plan.tables
    tensors, segments, programs, groups, splits = plan.on_device
    grid = (len(tables.programs) - 1,)
    constants = {
        "KINDS": tables.kinds, "ALIGNED": tables.aligned, "DTYPES": plan.dtypes, "WIDE": plan.wide,
    }  # fmt: skip
    options: dict[str, Any] = (
        {} if INTERPRETED else {"num_warps": WARPS, "maxnreg": 255 if plan.wide else REGISTERS}
    )
    cooperative = {} if INTERPRETED else {"launch_cooperative_grid": True}
    solve_groups[grid](
        tensors, segments, programs, groups, splits, plan.settings, plan.state, plan.parts,
        plan.raw, plan.values, plan.tops, plan.factors, plan.counters,
        plan.groups, len(tables.lengths), BLOCK=BLOCK, **constants, **options, **cooperative,
    )  # fmt: skip
    write_groups[grid](
        tensors, segments, programs, plan.state, plan.values, plan.tops, plan.factors,
        plan.results, IN_PLACE=plan.in_place, **constants, **options,
    )  # fmt: skip
