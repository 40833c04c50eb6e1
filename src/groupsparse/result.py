"""What a solve returns: the projected vectors and the certificate that they are right."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from .errors import InvalidInput
from .layout import as_number

V = TypeVar("V")


class Status(Enum):
    """How a solve ended. The value of each member is its message."""

    FEASIBLE = "already sparse enough: returned unchanged"
    CONVERGED = "target met"
    TIE = "target met at a tie: the share of equally large entries was chosen to meet it"
    CORNER = "target met, with a duality gap: a weighted vector was left between two corners"
    STALLED = "target not met to the tolerance: the iteration limit was reached"
    # The device never raises by itself; it reports these, having written nothing.
    NOT_FINITE = "nothing was written: a value is a NaN or an infinity"
    OUT_OF_RANGE = "nothing was written: an entry of the answer is out of the range of its dtype"
    BAD_WEIGHTS = (
        "nothing was written: a weight is negative or not finite, or those of a vector are all zero"
    )

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Projection(Generic[V]):
    """The answer of one projection and its certificate.

    Attributes
    ----------
    value
        The projected vectors, in the form in which they were given.
    multiplier
        The multiplier μ of the constraint; pass it as ``start`` to the next, similar problem.
    target
        The average Hoyer measure that was asked for.
    hoyer
        The average Hoyer measure of ``value`` as returned, that is, after rounding to its dtype.
    status
        How the solve ended; ``str(status)`` is a sentence.
    iterations
        Steps of the root finder.
    passes
        Full passes over the data, the final write included.
    kernel
        The name of the kernel that ran.
    primal, dual
        Σ xᵢᵀ|cᵢ| at the answer, and the dual value ℓ(μ) ≥ every feasible Σ xᵢᵀ|cᵢ|.

    Examples
    --------
    >>> import numpy as np
    >>> import groupsparse as gs
    >>> p = gs.solve(np.array([[5.0, 1.0, -0.5, 0.2], [3.0, 2.0, -1.0, 0.0]]), 0.8)
    >>> print(p.status)
    target met
    >>> abs(p.residual) < 1e-10, abs(p.gap) < 1e-10
    (True, True)
    """

    value: V = field(repr=False)  # it may be a whole network
    multiplier: float
    target: float
    hoyer: float
    status: Status
    iterations: int
    passes: int
    kernel: str
    primal: float
    dual: float

    @property
    def residual(self) -> float:
        """Achieved average minus target; positive where the input was sparser than asked."""
        return self.hoyer - self.target

    @property
    def gap(self) -> float:
        """Dual minus primal value: zero, up to rounding, proves that the answer is optimal."""
        return self.dual - self.primal


def multiplier_of(start: float | Projection[Any] | None) -> float | None:
    """The multiplier that a solve is to start from."""
    if start is None:
        return None
    expected = "a multiplier, a finite number >= 0"
    mu = start.multiplier if isinstance(start, Projection) else as_number(start, "start", expected)
    if not 0.0 <= mu < math.inf:
        raise InvalidInput(f"start is {mu}; expected {expected}")
    return mu
