"""One number in, the closest vectors that have it out: projection to an average Hoyer measure.

The names below are the whole interface of the core. ``groupsparse.nmf``, ``groupsparse.prune`` and
``groupsparse.plotting`` are imported by name when they are needed.
"""

from .errors import (
    InvalidInput,
    MissingExtra,
    NonFiniteInput,
    UnsupportedType,
)
from .projection import project, project_, project_each_, solve
from .result import Projection, Status
from .sparsity import average_hoyer, hoyer, zero_fraction

__version__ = "0.1.0"

__all__ = [
    "InvalidInput",
    "MissingExtra",
    "NonFiniteInput",
    "Projection",
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
