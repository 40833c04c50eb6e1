"""What all pictures share: where they are drawn, and in which colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, missing_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any kind of colour vision tell apart, in an order in
# which neighbours also differ in lightness. Yellow is left out: it cannot be seen on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
BEFORE, AFTER, FAINT = COLORS[1], COLORS[0], "0.75"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own: no pyplot, no window, no setting that others would inherit."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise missing_extra("matplotlib", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def axes_on(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes that were given, or new ones on a new figure of that size in inches."""
    return new_figure(width, height).subplots() if ax is None else ax


def style(place: int) -> dict[str, Any]:
    """Colour, marker and line of the curve at that place: never told apart by colour alone."""
    return {
        "color": COLORS[place % len(COLORS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": LINES[place % len(LINES)],
    }


def tidy(ax: Axes) -> None:
    """Take away the frame's upper and right side, and help the eye along the values."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)


def legend_above(ax: Axes, columns: int) -> None:
    """The legend outside, over the axes, where it hides nothing."""
    ax.legend(
        frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize="small"
    )


def numbers(values: Any) -> NDArray[np.float64]:
    """An array of float64 from whatever was given, tensors on any device included."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def vectors_of(vectors: Any, axis: Any, name: str) -> dict[str, NDArray[np.float64]]:
    """The vectors one by one, with their names: the keys of a dict, or their places."""
    if isinstance(vectors, Mapping):
        found = {str(key): numbers(vector).ravel() for key, vector in vectors.items()}
    elif isinstance(vectors, list | tuple):
        found = {str(place): numbers(vector).ravel() for place, vector in enumerate(vectors)}
    else:
        array = numbers(vectors)
        axes = range(array.ndim) if axis is None else (axis if isinstance(axis, tuple) else (axis,))
        ends = [place - len(axes) for place in range(len(axes))]
        rows = np.moveaxis(array, tuple(axes), ends)
        rows = rows.reshape(-1, int(np.prod(rows.shape[rows.ndim - len(axes) :])))
        found = {str(place): row for place, row in enumerate(rows)}
    if not found:
        raise InvalidInput(f"{name} is empty; expected at least one vector")
    return found


def named(things: Any) -> dict[str, Any]:
    """A dict as it is; the members of a list by their places."""
    if isinstance(things, Mapping):
        return {str(key): thing for key, thing in things.items()}
    return {str(place): thing for place, thing in enumerate(things)}
