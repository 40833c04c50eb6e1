"""Both measures side by side: vector by vector, or layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput
from ..sparsity import average_hoyer, hoyer, zero_fraction
from .canvas import AFTER, BEFORE, COLORS, FAINT, axes_on, legend_above, tidy, vectors_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More names than this cannot be read below an axis.
NAMES = 24
# More letters than this do not fit side by side.
LETTERS = 60
# Lighter shades of the two colours, for the bars behind the dots.
PALE = {BEFORE: "#F6CDB0", AFTER: "#B3D4E8"}


def sparsity_before_after(
    before: Any, after: Any, *, axis: Any = -1, ax: Axes | None = None
) -> Axes:
    """Draw both measures of each vector before and after a projection.

    Dots are Hoyer measures, hollow before and full after; bars are fractions of zeros. The dashed
    line is the average Hoyer measure after, the one number that was prescribed.

    Parameters
    ----------
    before, after : array, torch.Tensor, or list, tuple or dict of such
        The same vectors, as for :func:`groupsparse.project`. Vectors of length 1 have no measure
        and no dot.
    axis : int, tuple of ints or None
        Where the vectors of an array lie; not used for containers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; on a new figure if not given.

    Returns
    -------
    matplotlib.axes.Axes
        With two ``BarContainer`` (zeros after and, in front of them, before) and the dots, before
        and after, as the last two of ``ax.collections``.

    Examples
    --------
    >>> import groupsparse as gs
    >>> from groupsparse import plotting
    >>> vectors = {"short": [3.0, 2.0, 0.1], "long": [1.0, 2.0, 0.3, 0.2, 0.1]}
    >>> ax = plotting.sparsity_before_after(vectors, gs.project(vectors, 0.8))
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['short', 'long']
    """
    old, new = vectors_of(before, axis, "before"), vectors_of(after, axis, "after")
    if list(old) != list(new) or any(old[name].shape != new[name].shape for name in old):
        raise InvalidInput("before and after are not the same vectors: names or lengths differ")
    turned = len(old) <= NAMES and sum(len(name) + 2 for name in old) > LETTERS
    room = 0.09 * max(map(len, old)) if turned else 0.0  # for names that stand upright
    ax = axes_on(ax, min(12.0, max(5.0, 0.22 * len(old) + 2)), 3.6 + room)
    places = np.arange(len(old))
    measures = {}
    for vectors, color, when, width in ((new, AFTER, "after", 0.8), (old, BEFORE, "before", 0.5)):
        zeros = [zero_fraction(vector) for vector in vectors.values()]
        ax.bar(places, zeros, width, color=PALE[color], label=f"zeros {when}")
        measures[when] = [hoyer(vector) for vector in vectors.values()]
    ax.vlines(places, measures["before"], measures["after"], color=FAINT, linewidth=1.2, zorder=2)
    ax.scatter(places, measures["before"], 28, zorder=3, label="hoyer before", ec=BEFORE, fc="w")
    ax.scatter(places, measures["after"], 28, zorder=3, label="hoyer after", color=AFTER)
    average = average_hoyer(list(new.values()))
    ax.axhline(average, color=AFTER, linestyle="--", linewidth=1, label=f"average {average:.3f}")
    ax.set(ylim=(0.0, 1.05), xlim=(-0.6, len(old) - 0.4))
    if len(old) <= NAMES:
        ax.set_xticks(places, list(old), rotation=90 if turned else 0)
    ax.set_xlabel("vector")
    tidy(ax)
    legend_above(ax, columns=3)
    return ax


def layer_sparsity(report: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the zeros (bars) and the Hoyer measure (dots) of each layer of a network.

    Parameters
    ----------
    report : Report, or dict of them
        What :func:`groupsparse.prune.report` returns. Those of several networks with the same
        layers stand side by side; the keys are what they are called.
    ax : matplotlib.axes.Axes, optional
        Where to draw; on a new figure if not given.

    Returns
    -------
    matplotlib.axes.Axes
        With one ``BarContainer`` per report in ``ax.containers``, and its dots in
        ``ax.collections``. The last bars, called total, are all layers together.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import plotting, prune
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 2))
    >>> _ = prune.cut(model, sparsity=0.5)
    >>> ax = plotting.layer_sparsity(prune.report(model))
    >>> print(ax.containers[0].patches[-1].get_width())
    0.5
    """
    reports = dict(report) if isinstance(report, Mapping) else {"": report}
    if not reports:
        raise InvalidInput("report is empty; expected at least one")
    first = next(iter(reports.values()))
    layers = [(row.name, row.parameters) for row in first.rows]
    for name, other in reports.items():
        if [(row.name, row.parameters) for row in other.rows] != layers:
            raise InvalidInput(f"the report {name!r} is of a network with other layers")
    many = len(layers) > NAMES
    written = "{}  {:,}" if many else "{}\n{:,} entries"
    names = [written.format(name, count) for name, count in layers]
    names.append(written.format("total", first.total.parameters))
    height = 0.08 + 0.12 * len(reports) if many else 0.35 + 0.17 * len(reports)
    ax = axes_on(ax, 6.0, 0.9 + len(names) * height)
    thick = 0.8 / len(reports)
    for place, (name, found) in enumerate(reports.items()):
        rows = [*found.rows, found.total]
        middles = np.arange(len(rows)) + thick * (place - (len(reports) - 1) / 2)
        color = COLORS[place % len(COLORS)]
        label = f"{name}: zeros" if name else "zeros"
        ax.barh(middles, [row.sparsity for row in rows], 0.92 * thick, color=color, label=label)
        measures = [row.hoyer if math.isfinite(row.hoyer) else np.nan for row in rows]
        label = "" if place else "hoyer"
        ax.scatter(measures, middles, 26, label=label, fc="white", ec="black", lw=1, zorder=3)
    ax.set_yticks(range(len(names)), names, fontsize="small" if many else None)
    ax.set_ylim(-0.7, len(names) - 0.3)
    ax.invert_yaxis()
    ax.axhline(len(layers) - 0.5, color="0.6", linewidth=0.8)
    ax.set(xlim=(0.0, 1.02), xlabel="fraction of zeros, Hoyer measure")
    tidy(ax)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    legend_above(ax, columns=2)
    return ax
