"""The scalar equation behind a projection, and where it is solved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..projection import solve
from ..sparsity import average_hoyer
from .canvas import AFTER, BEFORE, axes_on, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def multiplier_curve(
    vectors: Any,
    hoyer: float,
    *,
    axis: Any = -1,
    weights: Any = None,
    points: int = 80,
    ax: Axes | None = None,
) -> Axes:
    """Draw g(μ), the equation in one unknown that a projection comes down to, and its root.

    Drawn is g(μ)/r, which is the target minus the average Hoyer measure under the multiplier μ. It
    never increases, and where it is zero is the multiplier that :func:`groupsparse.solve` reports.

    Parameters
    ----------
    vectors, hoyer, axis, weights
        What is projected and to which target, as for :func:`groupsparse.solve`.
    points : int
        How many points of the curve are computed.
    ax : matplotlib.axes.Axes, optional
        Where to draw; on a new figure if not given.

    Returns
    -------
    matplotlib.axes.Axes
        Its lines are the curve, the level zero, and the root.

    Notes
    -----
    Nothing is evaluated here. The curve is read the other way round: `solve` gives for one target
    after another the multiplier that belongs to it, each with its certificate. Where g jumps,
    because entries are equally large, many targets have the same multiplier, and the curve falls
    vertically.

    Examples
    --------
    >>> import groupsparse as gs
    >>> from groupsparse import plotting
    >>> vectors = [[3.0, 2.0, 0.1], [1.0, 2.0, 0.3, 0.2]]
    >>> ax = plotting.multiplier_curve(vectors, 0.8)
    >>> bool(ax.lines[2].get_xdata()[0] == gs.solve(vectors, 0.8).multiplier)
    True
    """
    root = solve(vectors, hoyer, axis=axis, weights=weights)
    given = average_hoyer(vectors, axis=axis, weights=weights)
    # A little further than the root: at target 1 the curve would run far out to the right.
    last = root.hoyer + 0.6 * (1.0 - root.hoyer)
    half = max(2, points // 2)
    targets = np.concatenate(
        [np.linspace(given, root.hoyer, half), np.linspace(root.hoyer, last, half)]
    )
    solved, start = [], 0.0
    for target in np.clip(targets, 0.0, 1.0):
        p = solve(vectors, float(target), axis=axis, weights=weights, start=start)
        solved.append((p.multiplier, hoyer - p.hoyer))
        start = p.multiplier
    mu, g = np.array(sorted(solved, key=lambda point: (point[0], -point[1]))).T

    ax = axes_on(ax, 5.5, 3.4)
    ax.plot(mu, g, color=AFTER, linewidth=1.8, label="g(μ)/r: target − average hoyer")
    ax.axhline(0.0, color="0.5", linewidth=1)
    ax.plot([root.multiplier], [hoyer - root.hoyer], "o", color=BEFORE, markersize=7,
            label=f"root: μ = {root.multiplier:.4g}", linestyle="none")  # fmt: skip
    ax.set(xlabel="multiplier μ", ylabel="g(μ)/r", xlim=(0.0, None))
    tidy(ax)
    ax.legend(frameon=False)
    return ax
