"""The k smallest of many scores, spread over many tensors, exactly and without sorting them.

Scores become integers in the same order as the floats (their bit patterns). Counting the leading
16 bits of all of them finds the bucket in which the k-th smallest lies; counting the next 16 bits
of that bucket's members narrows it further, until the k-th smallest is known to the last bit.
Two passes for float32, four for float64, and nothing larger than one chunk is ever held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from ..errors import InvalidInput, NonFiniteInput

_DIGIT = 16
_BUCKETS = 1 << _DIGIT

Total = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scores:
    """One tensor of scores: computed when asked for, so that all need not exist at once.

    ``total`` adds a vector of counts over the processes that hold the other parts of the tensor.
    """

    name: str
    compute: Callable[[], Tensor]
    total: Total | None = None


@dataclass(frozen=True)
class Cutoff:
    """Scores below ``value`` are among the k smallest, and so are ``ties`` of those equal to it."""

    value: float
    ties: int
    dtype: torch.dtype


def kth_smallest(scores: Sequence[Scores], k: int, dtype: torch.dtype) -> Cutoff:
    """Find the cutoff that exactly ``k`` of all scores fall under.

    Parameters
    ----------
    scores : sequence of Scores
        Finite numbers.
    k : int
        How many are wanted, between 0 and their number.
    dtype : torch.dtype
        float32 or float64, in which all of them are compared.

    Examples
    --------
    >>> import torch
    >>> kth_smallest([Scores("a", lambda: torch.tensor([3.0, 1.0, 1.0, 1.0]))], 2, torch.float32)
    Cutoff(value=1.0, ties=2, dtype=torch.float32)
    """
    if k == 0:
        return Cutoff(-math.inf, 0, dtype)
    prefix, remaining = 0, k
    steps = torch.finfo(dtype).bits // _DIGIT
    for step in range(steps):
        shift = _DIGIT * (steps - 1 - step)
        counts = torch.zeros(_BUCKETS, dtype=torch.int64, device="cpu")
        for part, total in _parts(scores):
            own = _counts(part, dtype, shift, prefix if step else None)
            counts += own if total is None else total(own)
        if step == 0 and not _all_finite(counts, dtype, shift):
            refuse_non_finite(scores)
        cumulated = counts.cumsum(0)
        bucket = int(torch.searchsorted(cumulated, remaining))
        if bucket == _BUCKETS:
            raise InvalidInput(f"{k} entries were asked for; there are {int(cumulated[-1])}")
        remaining -= int(cumulated[bucket] - counts[bucket])
        prefix = (prefix << _DIGIT) + (bucket if step else bucket - _BUCKETS // 2)
    return Cutoff(_value(prefix, dtype), remaining, dtype)


def first_true(where: Tensor, count: int) -> Tensor:
    """The first ``count`` True entries in row-major order; the others become False."""
    flat = where.reshape(-1)
    # int64, torch's own choice, would take eight times the room of what is counted.
    counts = torch.int32 if flat.numel() < 1 << 31 else torch.int64
    return (flat & (flat.cumsum(0, dtype=counts) <= count)).view(where.shape)


def common_dtype(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The dtype in which numbers of all these can be compared exactly."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _counts(scores: Sequence[Scores], dtype: torch.dtype, shift: int, prefix: int | None) -> Tensor:
    """How many keys have each digit, of those that start with ``prefix`` (None: of all)."""
    counts = torch.zeros(_BUCKETS, dtype=torch.int64, device="cpu")
    for keys in _chunks(scores, dtype):
        if prefix is None:
            # The leading digit carries the sign; moving it makes it count from zero.
            digits = (keys >> shift) + _BUCKETS // 2
        else:
            digits = (keys[keys >> (shift + _DIGIT) == prefix] >> shift) & (_BUCKETS - 1)
        counts += torch.bincount(digits, minlength=_BUCKETS).cpu()
    return counts


def _parts(scores: Sequence[Scores]) -> Iterator[tuple[list[Scores], Total | None]]:
    """The scores, together where their counts are added over the same processes."""
    parts: dict[Total | None, list[Scores]] = {}
    for score in scores:
        parts.setdefault(score.total, []).append(score)
    for total, part in parts.items():
        yield part, total


def _chunks(scores: Sequence[Scores], dtype: torch.dtype) -> Iterator[Tensor]:
    """The keys of all scores in pieces of bounded size: few launches, little memory."""
    held: list[Tensor] = []
    for score in scores:
        flat = score.compute().reshape(-1)
        # A CPU wants to stay in its cache; a GPU wants one launch for a whole ResNet-50.
        size = 1 << 18 if flat.device.type == "cpu" else 1 << 25
        for piece in torch.split(flat, size):
            crowded = sum(h.numel() for h in held) + piece.numel() > size
            if held and (crowded or held[0].device != piece.device):
                yield torch.cat(held)
                held = []
            held.append(_keys(piece, dtype))
    if held:
        yield torch.cat(held)


def _integers(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype == torch.float64 else torch.int32


def _keys(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers in the same order as the scores; −0.0 and 0.0 are one and the same."""
    integers = _integers(dtype)
    bits = (scores.detach().to(dtype) + 0.0).view(integers)
    return bits ^ ((bits >> (torch.iinfo(integers).bits - 1)) & torch.iinfo(integers).max)


def _value(key: int, dtype: torch.dtype) -> float:
    """The score that has this key."""
    integers = _integers(dtype)
    bits = key ^ torch.iinfo(integers).max if key < 0 else key
    return float(torch.tensor(bits, dtype=integers, device="cpu").view(dtype))


def refuse_non_finite(scores: Sequence[Scores]) -> NoReturn:
    """Raise for scores that are known to hold a NaN or an infinity; only now look where."""
    for score in scores:
        bad = ~torch.isfinite(score.compute())
        if bad.any():
            at = tuple(int(i) for i in bad.nonzero()[0])
            raise NonFiniteInput(f"{score.name} is not finite at {at}; expected finite numbers")
    raise NonFiniteInput("another process holds a NaN or an infinity; expected finite numbers")


def _all_finite(counts: Tensor, dtype: torch.dtype, shift: int) -> bool:
    """The counts of the leading digit show for free whether there is a NaN or infinity."""
    infinity = int(_keys(torch.tensor(math.inf, device="cpu"), dtype)) >> shift
    middle = _BUCKETS // 2
    return not (counts[middle + infinity :].any() or counts[: middle - infinity].any())
