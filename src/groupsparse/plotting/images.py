"""Parts, filters or dictionary atoms as a grid of small images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput
from .canvas import axes_on, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FLAT = 6  # times as wide as high


def basis_images(
    components: Any,
    shape: tuple[int, int],
    *,
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    scale: str = "each",
    signed: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw vectors as a grid of images: zero is white, and the larger an entry, the darker it is.

    Parameters
    ----------
    components : array of shape (parts, height * width)
        One image per row, for instance ``components_`` of a factorisation.
    shape : (int, int)
        Height and width of one image.
    columns : int, optional
        How many images stand side by side; by default about the square root of their number, or
        one where images are much wider than high.
    labels : list of str, optional
        What is written over each image.
    scale : {"each", "all"}
        Whether black is the largest magnitude of each image, or of all of them together.
    signed : bool, optional
        Whether colours tell signs apart: positive entries orange, negative ones purple. By
        default so where a component has a negative entry.
    ax : matplotlib.axes.Axes, optional
        Where to draw; on a new figure if not given.

    Returns
    -------
    matplotlib.axes.Axes
        With a single image, ``ax.images[0]``, whose entries between the parts are masked.

    Examples
    --------
    >>> import numpy as np
    >>> from groupsparse import plotting
    >>> ax = plotting.basis_images(np.eye(6), (2, 3), columns=3)
    >>> ax.images[0].get_array().shape
    (5, 11)
    """
    parts = numbers(components)
    height, width = shape
    if parts.ndim != 2 or parts.shape[0] == 0 or parts.shape[1] != height * width:
        raise InvalidInput(
            f"components has shape {parts.shape}; expected (parts, {height * width}), whose rows "
            f"are images of shape {tuple(shape)}"
        )
    if scale not in ("each", "all"):
        raise InvalidInput(f"scale is {scale!r}; expected 'each' or 'all'")
    if labels is not None and len(labels) != len(parts):
        raise InvalidInput(f"labels has {len(labels)} members; expected one for {len(parts)} parts")
    signed = bool((parts < 0).any()) if signed is None else signed
    if columns is not None and columns < 1:
        raise InvalidInput(f"columns is {columns}; expected 1 or more")
    # Parts that are lines stand one below the other, as strips that are high enough to be seen.
    flat = width > FLAT * height
    if columns is None:
        columns = 1 if flat else math.ceil(math.sqrt(len(parts)))
    columns = min(columns, len(parts))
    page, corners = _mosaic(_scaled(parts, scale), shape, columns, room=labels is not None)

    rows = -(-len(parts) // columns)
    across = max(2.0, (5.0 if flat else 0.8) * columns)
    down = 0.3 * rows if flat else 0.8 * rows * page.shape[0] / page.shape[1]
    ax = axes_on(ax, across, max(1.5, down))
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    # Purple and orange differ for every kind of colour vision, which red and green do not.
    ax.imshow(
        page,
        cmap="PuOr_r" if signed else "gray_r",
        vmin=-1.0 if signed else 0.0,
        vmax=1.0,
        aspect="auto" if flat else "equal",
    )
    frames = [Rectangle((x - 0.5, y - 0.5), width, height) for y, x in corners]
    lines = PatchCollection(frames, facecolor="none", edgecolor="0.7", linewidth=0.6)
    ax.add_collection(lines)
    lines.set_clip_on(False)  # the last line runs along the edge of the axes
    for (y, x), label in zip(corners, labels or (), strict=False):
        ax.text(x + (width - 1) / 2, y - 0.8, label, ha="center", va="bottom", fontsize="x-small")
    ax.set(xlim=(-1.0, page.shape[1]), ylim=(page.shape[0], -1.0))
    ax.set_axis_off()
    return ax


def _scaled(parts: Any, scale: str) -> Any:
    """The parts, with 1 for the largest magnitude."""
    peak = np.abs(parts).max(axis=1 if scale == "each" else None, keepdims=True)
    return parts / np.where(peak > 0.0, peak, 1.0)


def _mosaic(
    parts: Any, shape: tuple[int, int], columns: int, *, room: bool
) -> tuple[Any, list[tuple[int, int]]]:
    """All images on one page, masked in between, and where the corner of each one is."""
    height, width = shape
    gap = max(1, round(0.1 * min(shape)))
    above = max(2, round(0.3 * height)) if room else gap
    rows = -(-len(parts) // columns)
    down, across = height + above, width + gap
    page = np.full((rows * down - gap * (not room), columns * across - gap), np.nan)
    corners = []
    for place, part in enumerate(parts):
        y, x = place // columns * down + above * room, place % columns * across
        page[y : y + height, x : x + width] = part.reshape(shape)
        corners.append((y, x))
    return np.ma.masked_invalid(page), corners
