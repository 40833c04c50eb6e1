"""The methods that the projection is compared with, in one interface.

Each takes a model and a sparsity, zeroes parameters in place and returns `Masks`; those that act
during training (`GradualMagnitude`, `DeepHoyer`) attach like the `Inducer`.
"""

from .at_initialisation import grasp, snip, synflow
from .deephoyer import DeepHoyer
from .magnitude import GradualMagnitude, magnitude
from .uniform import random

__all__ = [
    "DeepHoyer",
    "GradualMagnitude",
    "grasp",
    "magnitude",
    "random",
    "snip",
    "synflow",
]
