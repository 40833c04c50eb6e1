"""The cut of many tensors on one CUDA device: one table, seven launches, one wait at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .tables import BLOCK, alike, chunks, layout, room

_TOP = 24  # the first digit begins at this bit, eight bits each
_WARPS = 8
# Columns of a table as the kernels know it.
SCORES, PARAMETER, ENTRIES, BYTES, GROUP, FIRST, COLUMNS = 0, 7, 14, 15, 16, 17, 18


@dataclass(frozen=True)
class Outcome:
    """What the cut does: nothing at all, where a score is not finite.

    ``bits`` has the mask of every tensor one after the other, each in its `tables.room`.
    """

    bits: Tensor
    found: Tensor

    def wait(self) -> tuple[bool, list[int]]:
        """Wait for the device: whether all scores are finite, and what is not zero of each."""
        infinite, *nonzero = self.found.tolist()
        return not infinite, nonzero


def cut_(
    parameters: Sequence[Tensor],
    scores: Sequence[Tensor] | None,
    groups: Sequence[int],
    wanted: Sequence[int],
) -> Outcome | None:
    """Zero the ``wanted`` lowest entries of each group, of equal ones the first.

    ``groups`` are the numbers of tensors that compete with each other and stand in a row. Without
    ``scores``, entries are compared by their absolute values. None, and nothing done, where dtypes,
    devices or formats are not those that the kernels know.

    Examples
    --------
    >>> cut_([torch.randn(8, 8, dtype=torch.float64)], None, [1], [32]) is None
    True
    """
    compared = parameters if scores is None else scores
    if not alike(parameters) or (compared is not parameters and not alike(compared)):
        return None
    device = parameters[0].device
    laid = _table(parameters, compared, groups)
    if laid is None or compared[0].device != device:
        return None
    import triton
    import triton.language as tl

    from . import kernels

    rows, begins, programs, size = laid
    # One copy to the device: the table, the groups' states, and where each group begins.
    states = [number for k in wanted for number in (0, k, 0)]
    numbers = np.concatenate((rows.ravel(), np.array([*states, *begins], dtype=np.int64)))
    flat = torch.from_numpy(numbers).to(device, non_blocking=True)
    table, state, group_begins = flat.split_with_sizes([rows.size, len(states), len(begins)])
    many = len(parameters)
    # The groups' counts of each digit, how many of their programs are done, and what is found.
    own = len(groups)
    sizes = [own * 256] * 4 + [-(-own // 4) * 4, 1 + many]
    zeros = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
    *counts, arrived, found = zeros.split_with_sizes(sizes)
    types = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    options = {
        "ABSOLUTE": scores is None,
        "DTYPE": types[compared[0].dtype],
        "PADDED": triton.next_power_of_2(many),
        "BLOCK": BLOCK,
        "num_warps": _WARPS,
    }
    grid = (programs,)
    with torch.cuda.device(device if device.type == "cuda" else -1):  # -1: no device, no change
        for digit, shift in enumerate(range(_TOP, -1, -8)):
            kernels.count[grid](
                table, many, counts[digit], arrived, group_begins, own, state, found, shift,
                _TOP, **options,
            )  # fmt: skip
        bits = torch.empty(size, dtype=torch.uint8, device=device)
        ties = torch.empty(programs, dtype=torch.int32, device=device)
        kernels.count_ties[grid](table, many, state, ties, **options)
        earlier = ties.cumsum(0)
        kernels.cut[grid](
            table, many, state, ties, earlier, group_begins, found, bits,
            PARAMETERS=types[parameters[0].dtype], **options,
        )  # fmt: skip
    return Outcome(bits, found)


def _table(
    parameters: Sequence[Tensor], compared: Sequence[Tensor], groups: Sequence[int]
) -> tuple[NDArray[np.int64], list[int], int, int] | None:
    """The table, each group's first program, the number of programs and that of mask bytes."""
    layouts = [where for x in parameters if (where := layout(x)) is not None]
    others = layouts
    if compared is not parameters:
        others = [where for x in compared if (where := layout(x)) is not None]
    if not len(layouts) == len(others) == len(parameters):
        return None
    entries = [x.numel() for x in parameters]
    addresses = [x.data_ptr() for x in parameters]
    starts = [0, *accumulate(map(chunks, entries))]
    bytes_ = [0, *accumulate(map(room, entries))]
    places = [0, *accumulate(groups)]
    rows = np.empty((len(entries), COLUMNS), dtype=np.int64)
    rows[:, PARAMETER] = addresses
    rows[:, PARAMETER + 1 : ENTRIES] = layouts
    if compared is parameters:
        rows[:, SCORES:PARAMETER] = rows[:, PARAMETER:ENTRIES]
    else:
        rows[:, SCORES] = [x.data_ptr() for x in compared]
        rows[:, SCORES + 1 : PARAMETER] = others
    rows[:, ENTRIES] = entries
    rows[:, BYTES] = bytes_[:-1]
    rows[:, GROUP] = 0 if len(groups) == 1 else np.repeat(np.arange(len(groups)), groups)
    rows[:, FIRST] = starts[:-1]
    return rows, [starts[place] for place in places[:-1]], starts[-1], bytes_[-1]
