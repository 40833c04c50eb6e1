"""How the target grows: functions from progress in [0, 1] to the share of the target in [0, 1].

Progress is measured in optimizer steps between ``start`` and ``stop``. Any callable of this kind
is a schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ..errors import InvalidInput

Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Ramp:
    """From ``initial`` to 1 along 1 − (1 − u)^power, where u reaches 1 at progress ``until``."""

    power: int
    initial: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.initial <= 1.0:
            raise InvalidInput(f"initial is {self.initial}; expected a share in [0, 1]")
        if not 0.0 < self.until <= 1.0:
            raise InvalidInput(f"until is {self.until}; expected a share of the span in (0, 1]")

    def __call__(self, progress: float) -> float:
        u = min(max(progress / self.until, 0.0), 1.0)
        return 1.0 - (1.0 - self.initial) * (1.0 - u) ** self.power


def constant() -> Schedule:
    """The whole target from the first projection on.

    Returns
    -------
    callable
        From progress to the share of the target.

    Examples
    --------
    >>> constant()(0.3)
    1.0
    """
    return Ramp(power=1, initial=1.0)


def linear(initial: float = 0.0, until: float = 1.0) -> Schedule:
    """The share initial + (1 − initial)·u, with u = progress / until, at most 1.

    Parameters
    ----------
    initial : float
        Share of the target at the start.
    until : float
        Progress at which the whole target is reached.

    Returns
    -------
    callable
        From progress to the share of the target.

    Examples
    --------
    >>> linear()(0.25), linear(until=0.5)(0.25)
    (0.25, 0.5)
    """
    return Ramp(power=1, initial=initial, until=until)


def cubic(initial: float = 0.0, until: float = 1.0) -> Schedule:
    """The share 1 − (1 − initial)(1 − u)³, with u = progress / until, at most 1.

    It rises fast while there is much to remove and slowly at the end (Zhu and Gupta, 2017).

    Parameters
    ----------
    initial : float
        Share of the target at the start.
    until : float
        Progress at which the whole target is reached.

    Returns
    -------
    callable
        From progress to the share of the target.

    Examples
    --------
    >>> cubic()(0.5), cubic()(1.0)
    (0.875, 1.0)
    """
    return Ramp(power=3, initial=initial, until=until)


@dataclass(frozen=True)
class Span:
    """The optimizer steps at which something periodic happens, and how far along each one is."""

    every: int
    start: int
    stop: int | None

    def __post_init__(self) -> None:
        for name, step in (("every", self.every), ("start", self.start), ("stop", self.stop)):
            if step is not None and (isinstance(step, bool) or not isinstance(step, Integral)):
                raise InvalidInput(f"{name} is {step!r}; expected a whole number of steps")
        if self.every < 1:
            raise InvalidInput(f"every is {self.every}; expected at least 1 optimizer step")
        if self.start < 0:
            raise InvalidInput(f"start is {self.start}; expected a step >= 0")
        if self.stop is not None and self.stop < self.start:
            raise InvalidInput(f"stop is {self.stop}; expected a step >= start ({self.start})")

    def check(self, schedule: Schedule) -> None:
        """Refuse, before any training, a schedule that would fail in the middle of it."""
        for progress in (0.0, 1.0):
            _share_at(progress, schedule)
        if self.stop is None and not (isinstance(schedule, Ramp) and schedule.initial == 1.0):
            raise InvalidInput("a schedule that changes needs stop=, where it ends")

    def due(self, step: int) -> bool:
        """Whether something happens after this optimizer step, the first being 1."""
        if step < max(self.start, 1) or (self.stop is not None and step > self.stop):
            return False
        # The last one is at stop itself: that is where a ramp reaches its whole target.
        return step == self.stop or (step - self.start) % self.every == 0

    def share(self, step: int, schedule: Schedule) -> float:
        """The schedule's value at this step, checked."""
        if self.stop is None or self.stop == self.start:
            progress = 1.0
        else:
            progress = (step - self.start) / (self.stop - self.start)
        return _share_at(progress, schedule)


def _share_at(progress: float, schedule: Schedule) -> float:
    share: Any = schedule(progress) if callable(schedule) else None
    try:
        number = float(share)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"schedule is {schedule!r}; expected a function from progress to a share of the "
            "target, such as prune.cubic()"
        ) from None
    if not 0.0 <= number <= 1.0:
        raise InvalidInput(
            f"the schedule returned {number} at progress {progress:.3g}; expected one in [0, 1]"
        )
    return number
