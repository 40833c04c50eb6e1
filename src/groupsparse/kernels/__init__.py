"""The kernels: one file each, all with the methods of :class:`Kernel`. They decide nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..dual import Point
from ..errors import InvalidInput, missing_extra
from ..layout import Block


class OutOfRange(Exception):
    """Squares of these values would overflow or vanish; the blocks have to be rescaled first."""


class NotFinite(Exception):
    """Some value is a NaN or an infinity."""


class Kernel(Protocol):
    """The sums over a group of vectors that a projection needs.

    ``passes`` counts how often the whole data was read.
    """

    name: str
    passes: int

    def begin(self, level: float, start: float | None) -> Sequence[Point]:
        """Look at the data once; raise if it is not finite or out of range. Returns the points
        at which the total is known after that."""

    def evaluate(self, mu: float) -> tuple[float, float]:
        """Σ βᵢ wᵢᵀxᵢ[μ] over the group, and its slope."""

    def upper(self) -> float:
        """A μ from which on no xᵢ[μ] changes any more."""

    def objective(self, mu: float) -> tuple[float, float]:
        """Σ xᵢᵀ|cᵢ| and Σ xᵢᵀ(|cᵢ| − tᵢwᵢ) at x = x[μ]."""

    def longest(self, mu: float) -> float:
        """The largest ‖zᵢ[μ]‖₂ of the vectors that are not 1-sparse."""

    def write(self, mu: float) -> None:
        """Write z[μ] into the ``out`` of every block."""


def create(name: str | None, blocks: Sequence[Block]) -> Kernel:
    """The kernel of that name; None takes the fastest one that can do it."""
    if name is None:
        weighted = any(block.weights is not None for block in blocks)
        name = "reference" if weighted else "numba"
    if name == "reference":
        from .reference import ReferenceKernel

        return ReferenceKernel(blocks)
    if name == "numba":
        from . import numba_cpu

        return numba_cpu.create(blocks)
    if name == "torch":
        try:
            from .torch_eager import TorchKernel
        except ImportError as error:
            raise missing_extra("torch", "torch") from error
        return TorchKernel(blocks)
    raise InvalidInput(f"kernel is {name!r}; expected 'reference', 'numba' or 'torch'")
