"""Launching the Triton kernels: how many programs fit on the chip, and the two calls."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from .triton_gpu import solve_groups, write_groups
from .triton_weighted_gpu import solve_weighted, write_weighted

WARPS = 4
# Programs on one multiprocessor: as many as their registers leave room for, by whether the sums
# run in float64. All of them must be resident together, since they wait for each other.
PER_UNIT = {False: 4, True: 2}
REGISTERS = {False: 128, True: 255}
BLOCK = 256
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TOGETHER = {"launch_cooperative_grid": True}


def options(wide: bool) -> dict[str, Any]:
    """How both kernels are compiled."""
    return {"num_warps": WARPS, "maxnreg": REGISTERS[wide]}


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def resident_programs(device: torch.device, wide: bool) -> int:
    """How many programs may meet on the chip: all of them must be there at once."""
    return 1 if INTERPRETED else multiprocessors(device) * PER_UNIT[wide]


def run(plan: Any) -> None:
    """Queue both launches for a plan."""
    if plan.weighted:
        _run_weighted(plan)
        return
    tables = plan.tables
    tensors, segments, programs, groups, splits = plan.on_device
    grid = (len(tables.programs) - 1,)
    constants = {
        "KINDS": tables.kinds, "ALIGNED": tables.aligned, "DTYPES": plan.dtypes, "WIDE": plan.wide,
    }  # fmt: skip
    compiled = {} if INTERPRETED else options(plan.wide)
    together = {} if INTERPRETED else TOGETHER
    solve_groups[grid](
        tensors, segments, programs, groups, splits, plan.settings, plan.state, plan.parts,
        plan.raw, plan.values, plan.tops, plan.factors, plan.counters,
        plan.groups, BLOCK=BLOCK, **constants, **compiled, **together,
    )  # fmt: skip
    write_groups[grid](
        tensors, segments, programs, plan.state, plan.values, plan.tops, plan.factors,
        plan.results, IN_PLACE=plan.in_place, **constants, **compiled,
    )  # fmt: skip


def _run_weighted(plan: Any) -> None:
    tensors, segments, programs, groups, _ = plan.on_device
    weights = plan.weight_table[1]
    grid = (len(plan.tables.programs) - 1,)
    constants = {"KINDS": plan.tables.kinds, "DTYPES": plan.all_dtypes}
    compiled = {} if INTERPRETED else options(True)
    together = {} if INTERPRETED else TOGETHER
    solve_weighted[grid](
        tensors, weights, segments, programs, groups, plan.settings, plan.state, plan.parts,
        plan.kept, plan.counters, plan.groups, BLOCK=BLOCK, **constants, **compiled, **together,
    )  # fmt: skip
    write_weighted[grid](
        tensors, weights, segments, programs, plan.state, plan.kept, plan.results,
        IN_PLACE=plan.in_place, **constants, **compiled,
    )  # fmt: skip
