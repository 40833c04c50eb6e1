"""The cut of many tensors on one CUDA device: one table, seven launches, one wait at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .tables import BLOCK, alike, chunks, layout

_TOP = 24  # the first digit begins at this bit, eight bits each
_WARPS = 8


@dataclass(frozen=True)
class Contest:
    """One parameter in the cut, what its entries are compared by, and with which others.

    ``scores`` of None stands for the absolute values of the parameter. Contests of one group, which
    compete with each other, stand in a row.
    """

    parameter: Tensor
    scores: Tensor | None
    group: int


@dataclass(frozen=True)
class Outcome:
    """What the cut does: nothing at all, where a score is not finite."""

    bits: tuple[Tensor, ...]
    found: Tensor

    def wait(self) -> tuple[bool, list[int]]:
        """Wait for the device: whether all scores are finite, and what is not zero of each."""
        infinite, *nonzero = self.found.tolist()
        return not infinite, nonzero


def cut_(contests: Sequence[Contest], wanted: Sequence[int]) -> Outcome | None:
    """Zero the ``wanted`` lowest entries of each group, of equal ones the first.

    None, and nothing done, where dtypes, devices or formats are not those that the kernels know.

    Examples
    --------
    >>> cut_([Contest(torch.randn(8, 8, dtype=torch.float64), None, group=0)], [32]) is None
    True
    """
    parameters = [contest.parameter for contest in contests]
    given = [contest.scores for contest in contests if contest.scores is not None]
    compared = given or parameters
    if len(compared) != len(parameters) or not alike(parameters) or not alike(compared):
        return None
    laid = _rows(contests, compared)
    if laid is None or compared[0].device != parameters[0].device:
        return None
    import triton
    import triton.language as tl

    from . import kernels

    device = parameters[0].device
    rows, starts, programs, size = laid
    begins = [-1] * len(wanted)
    for contest, start in zip(reversed(contests), reversed(starts), strict=True):
        begins[contest.group] = start
    # One copy to the device: the table, the groups' states, and where each group begins.
    states = [number for k in wanted for number in (0, k, 0)]
    numbers = np.array([*rows, *states, *begins], dtype=np.int64)
    flat = torch.from_numpy(numbers).to(device, non_blocking=True)
    table, state, group_begins = torch.split(flat, [len(rows), len(states), len(begins)])
    groups, many = len(wanted), len(contests)
    # The groups' counts of each digit, how many of their programs are done, and what is found.
    sizes = [groups * 256] * 4 + [-(-groups // 4) * 4, 1 + many]
    zeros = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
    *counts, arrived, found = torch.split(zeros, sizes)
    bits = torch.empty(size, dtype=torch.uint8, device=device)
    ties = torch.empty(programs, dtype=torch.int32, device=device)
    types = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    options = {
        "ABSOLUTE": not given,
        "DTYPE": types[compared[0].dtype],
        "PADDED": triton.next_power_of_2(len(contests)),
        "BLOCK": BLOCK,
        "num_warps": _WARPS,
    }
    grid = (programs,)
    with torch.cuda.device(device if device.type == "cuda" else -1):  # -1: no device, no change
        for digit, shift in enumerate(range(_TOP, -1, -8)):
            kernels.count[grid](
                table, many, counts[digit], arrived, group_begins, groups, state, found, shift,
                _TOP, **options,
            )  # fmt: skip
        kernels.count_ties[grid](table, many, state, ties, **options)
        earlier = ties.cumsum(0)
        kernels.cut[grid](
            table, many, state, ties, earlier, group_begins, found, bits,
            PARAMETERS=types[parameters[0].dtype], **options,
        )  # fmt: skip
    return Outcome(_pieces(bits, contests), found)


def _rows(
    contests: Sequence[Contest], compared: Sequence[Tensor]
) -> tuple[list[int], list[int], int, int] | None:
    """The table, each tensor's first program, the number of programs and that of mask bytes."""
    rows: list[int] = []
    starts: list[int] = []
    program = byte = 0
    for contest, scores in zip(contests, compared, strict=True):
        parameter = contest.parameter
        own = layout(parameter)
        others = own if scores is parameter else layout(scores)
        if own is None or others is None:
            return None
        entries = parameter.numel()
        rows += [scores.data_ptr(), *others, parameter.data_ptr(), *own]
        rows += [entries, byte, contest.group, program]
        starts.append(program)
        program += chunks(entries)
        byte += _room(entries)
    return rows, starts, program, byte


def _room(entries: int) -> int:
    """Bytes of a mask, rounded up so that the next one begins at a multiple of 16."""
    return -(-entries // 128) * 16


def _pieces(bits: Tensor, contests: Sequence[Contest]) -> tuple[Tensor, ...]:
    sizes = []  # of each mask, and of what is left of its room
    for contest in contests:
        entries = contest.parameter.numel()
        own = -(-entries // 8)
        sizes += [own, _room(entries) - own]
    return torch.split(bits, sizes)[::2]
