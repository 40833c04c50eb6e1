"""One number in, the closest vectors that have it out: projection to an average Hoyer measure.

The names below are the whole interface of the core. ``groupsparse.nmf``, ``groupsparse.prune`` and
``groupsparse.plotting`` are imported by name when they are needed.
"""

from typing import TYPE_CHECKING, Any

from .errors import (
    InvalidInput,
    MissingExtra,
    NonFiniteInput,
    UnsupportedType,
)
from .projection import project, project_, project_each_, solve
from .result import Projection, Status
from .sparsity import average_hoyer, hoyer, zero_fraction

if TYPE_CHECKING:
    from .device import Projector

__version__ = "0.1.0"

__all__ = [
    "InvalidInput",
    "MissingExtra",
    "NonFiniteInput",
    "Projection",
    "Projector",
    "Status",
    "UnsupportedType",
    "average_hoyer",
    "hoyer",
    "project",
    "project_",
    "project_each_",
    "solve",
    "zero_fraction",
]


def __getattr__(name: str) -> Any:
    """What needs PyTorch is imported when it is used."""
    if name == "Projector":
        from .device import Projector

        return Projector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
