"""Non-negative matrix factorisation whose factors meet a Hoyer target exactly.

>>> import numpy as np
>>> from groupsparse.nmf import GroupSparseNMF
>>> faces = np.random.default_rng(0).random((40, 30))
>>> model = GroupSparseNMF(n_components=5, hoyer_H=0.6, max_iter=50, tol=0, random_state=0)
>>> codes = model.fit_transform(faces)
>>> codes.shape, model.components_.shape, round(model.hoyer_H_, 6)
((40, 5), (5, 30), 0.6)
"""

from .alternating import Progress
from .estimator import GroupSparseNMF

__all__ = ["GroupSparseNMF", "Progress"]
