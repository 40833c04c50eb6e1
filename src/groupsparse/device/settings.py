"""What the kernels must know of a call beside the tensors: a row of numbers for each group."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .guess import NORMAL, normal_bend, normal_leap

SETTINGS = 12
# How near the total at 0 must be to that of normal entries for the step from there to be trusted,
# where all vectors are of one kind; a network's layers together have no root that 0 could tell.
TRUST = 0.03
TOLERANCE = {False: 5e-7, True: 1e-12}  # by whether some tensor is float64
WEIGHTED_TOLERANCE = 1e-9  # for smaller types with weights, whose sums run in float64 too
SLACK = {False: 5e-7, True: 1e-11}


def settings_of(plan: Any) -> NDArray[np.float64]:
    """The settings for a plan's targets, without a start; see ``begin_search`` in the kernel."""
    tables, double = plan.tables, plan.double
    usual = WEIGHTED_TOLERANCE if plan.weighted and not double else TOLERANCE[double]
    tolerance = usual if plan.tol is None else plan.tol
    settings = np.zeros((plan.groups, SETTINGS))
    target = np.asarray(plan.targets)
    counts, some = np.asarray(tables.counts), np.asarray(tables.sample_counts)
    settings[:, 0] = target == 1.0
    settings[:, 2] = level = np.asarray(tables.tops) - counts * target
    settings[:, 3] = counts
    settings[:, 4] = tolerance * counts
    settings[:, 5] = max(tolerance, SLACK[double]) * counts
    if plan.weighted:  # Σ β‖w‖₂ is found on the device, and nothing is known of the totals
        settings[:, 2] = -counts * target
        return settings
    settings[:, 6] = np.asarray(tables.sample_tops) - some * target
    settings[:, 7] = some
    # The search begins with all of a group, or with its sample.
    tops = np.where(some > 0, tables.sample_tops, tables.tops)
    leaps = [normal_leap(float(r)) for r in (level / np.asarray(tables.tops)).round(4)]
    settings[:, 8] = np.asarray(leaps) * tops
    settings[:, 9] = NORMAL * tops
    settings[:, 10] = [normal_bend(leap) for leap in leaps]
    settings[:, 11] = 0.0 if plan.shared and len(plan.walked) > 1 else TRUST
    return settings
