"""Certificates that lie on the device until somebody looks at them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..result import Projection, Status
from .tables import SPLIT, Tables

STATUSES = {
    10: Status.FEASIBLE,
    11: Status.CONVERGED,
    12: Status.TIE,
    13: Status.STALLED,
    14: Status.NOT_FINITE,
    15: Status.OUT_OF_RANGE,
    16: Status.CORNER,
    17: Status.BAD_WEIGHTS,
}
# Columns of a group's state that the host reads; see ``kernels/triton_search.py``.
MU, MODE, LEVEL, TOPS, ITERATIONS, PASSES, STATE_FIELDS = 0, 1, 2, 6, 25, 26, 39
SEGMENT_FIELDS, SPLIT_FIELDS = 3, 4


class Call:
    """What the certificates of one call have in common.

    With ``live`` the numbers are the memory of a plan, and change with its next call.
    """

    __slots__ = ("live", "numbers", "tables", "targets")

    def __init__(
        self, tables: Tables, targets: Sequence[float], numbers: Tensor, live: bool
    ) -> None:
        self.tables, self.targets, self.numbers, self.live = tables, targets, numbers, live


_put = object.__setattr__  # a certificate is frozen; made by the dozen in every call


class DeviceProjection(Projection[Any]):
    """One group's certificate, put together from numbers on the device when it is looked at."""

    __slots__ = ("call", "group", "known", "shown")

    call: Call
    group: int
    known: dict[str, Any] | None
    shown: Any

    def __init__(self, value: Any, call: Call, group: int) -> None:
        _put(self, "shown", value)
        _put(self, "call", call)
        _put(self, "group", group)
        _put(self, "known", None)

    def _read(self) -> dict[str, Any]:
        call = self.call
        if self.known is None or call.live:
            numbers = call.numbers.cpu().numpy()
            _put(self, "known", read(call.tables, numbers, self.group))
        assert self.known is not None
        return self.known

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, or what is pickled, has the numbers.
        return Projection, tuple(getattr(self, each.name) for each in fields(Projection))

    value = property(lambda self: self.shown)
    target = property(lambda self: self.call.targets[self.group])
    multiplier = property(lambda self: self._read()["multiplier"])
    hoyer = property(lambda self: self._read()["hoyer"])
    status = property(lambda self: self._read()["status"])
    iterations = property(lambda self: self._read()["iterations"])
    passes = property(lambda self: self._read()["passes"])
    kernel = property(lambda self: "triton")
    primal = property(lambda self: self._read()["primal"])
    dual = property(lambda self: self._read()["dual"])


def left_on_device(guesses: Sequence[Any], groups: int, device: Any) -> Tensor | None:
    """What an earlier call left, if these are its certificates in their order."""
    first = guesses[0]
    if not isinstance(first, DeviceProjection) or first.call.numbers.device != device:
        return None
    if len(first.call.tables.counts) != groups:
        return None
    for group, guess in enumerate(guesses):
        alike = isinstance(guess, DeviceProjection) and guess.call is first.call
        if not alike or guess.group != group:
            return None
    return first.call.numbers


def read(tables: Tables, numbers: NDArray[np.float64], group: int) -> dict[str, Any]:
    """Put a group's certificate together from what the kernels left."""
    groups, segments = len(tables.counts), len(tables.segments)
    states = groups * STATE_FIELDS
    state = numbers[:states].reshape(groups, STATE_FIELDS)[group]
    results = numbers[states : states + SEGMENT_FIELDS * segments].reshape(-1, SEGMENT_FIELDS)
    values = numbers[states + SEGMENT_FIELDS * segments :].reshape(-1, SPLIT_FIELDS)
    mu = float(state[MU])
    whole = (tables.segments[:, 1] == group) & (tables.segments[:, 2] != SPLIT)
    sums = results[whole].sum(axis=0)
    for number, length in enumerate(tables.lengths):
        _, owner, _, first, last, _, _ = tables.splits[number]
        if owner == group:
            sums = sums + _of_split(results[first:last].sum(axis=0), values[number], mu, length)
    terms, primal, dual = sums
    tops = float(state[TOPS]) if tables.weighted else tables.tops[group]
    return {
        "multiplier": mu,
        "status": STATUSES[int(state[MODE])],
        "iterations": int(state[ITERATIONS]),
        "passes": int(state[PASSES]) + 1,
        "hoyer": float((tops - terms) / tables.counts[group]),
        "primal": float(primal),
        "dual": float(dual + mu * float(state[LEVEL])),
    }


def _of_split(
    sums: NDArray[np.float64], value: NDArray[np.float64], mu: float, length: int
) -> NDArray[np.float64]:
    """The same three numbers for a vector that several programs wrote."""
    beta = 1.0 / (math.sqrt(length) - 1.0)
    l1, l2, norm = sums
    top, factor = value[:2]
    scale = 2.0 ** -math.floor(math.log2(top)) if 0.0 < top < math.inf else 1.0
    size = math.sqrt(norm) / scale
    term = beta * (l1 / math.sqrt(l2) if l2 > 0.0 else 1.0)
    dual = size if mu == 0.0 else size / factor if factor > 0.0 else top - mu * beta
    return np.array([term, size, dual])
