"""Pictures of projections, factorisations and pruned networks: they draw results.

Every function returns the axes it drew on. ``ax=`` draws on axes of your own; without it there is a
new figure that pyplot knows nothing of, ``ax.figure``, which `savefig` writes and notebooks show.

>>> import numpy as np
>>> from groupsparse import plotting
>>> ax = plotting.basis_images(np.eye(4), (2, 2))
>>> ax.figure.savefig("parts.png")  # doctest: +SKIP
"""

from .curves import accuracy_curves, error_curves
from .images import basis_images
from .measures import layer_sparsity, sparsity_before_after
from .multiplier import multiplier_curve

__all__ = [
    "accuracy_curves",
    "basis_images",
    "error_curves",
    "layer_sparsity",
    "multiplier_curve",
    "sparsity_before_after",
]
