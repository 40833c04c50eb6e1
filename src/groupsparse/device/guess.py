"""Where a search begins that knows nothing: at the root that normal entries would have."""

from __future__ import annotations

import functools
import math

NORMAL = math.sqrt(2.0 / math.pi)  # Σ|c|/(√n ‖c‖₂) of normal entries


@functools.lru_cache(maxsize=1024)
def normal_leap(ratio: float) -> float:
    """Where the search goes from μ = 0: over the slope there and times √n β, a multiplier.

    For normal entries and a threshold of τ deviations, Σ[|c| − t]₊/(√n ‖[|c| − t]₊‖₂) is a known
    function of τ; this finds the τ at which it is ``ratio``. Its slope at 0 is NORMAL² − 1.
    """
    low, high = 0.0, 8.0
    for _ in range(40):
        tau = 0.5 * (low + high)
        low, high = (tau, high) if _normal_ratio(tau) > ratio else (low, tau)
    return low * (1.0 - NORMAL * NORMAL)


@functools.lru_cache(maxsize=1024)
def normal_bend(leap: float) -> float:
    """μ g″/g′ at the root that `normal_leap` found: by how much Newton's steps miss it."""
    tau, h = max(leap / (1.0 - NORMAL * NORMAL), 0.01), 1e-3
    left, middle, right = (_normal_ratio(tau + k * h) for k in (-1, 0, 1))
    return tau * (right - 2.0 * middle + left) / h / (0.5 * (right - left))


def _normal_ratio(tau: float) -> float:
    """Σ[|c| − t]₊/(√n ‖[|c| − t]₊‖₂) of normal entries, for t of τ deviations."""
    density = math.exp(-0.5 * tau * tau) / math.sqrt(2.0 * math.pi)
    beyond = 0.5 * math.erfc(tau / math.sqrt(2.0))
    s = 2.0 * (density - tau * beyond)
    q = 2.0 * ((1.0 + tau * tau) * beyond - tau * density)
    return s / math.sqrt(max(q, 1e-300))
