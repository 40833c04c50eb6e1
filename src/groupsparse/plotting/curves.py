"""Curves: the error of factorisations, the accuracy of pruned networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .canvas import axes_on, legend_above, named, numbers, style, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CROWDED = 6  # more percentages than this may touch each other
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


def error_curves(models: Any, *, against: str = "iterations", ax: Axes | None = None) -> Axes:
    """Draw the relative error ‖X − WH‖/‖X‖ of one or several factorisations as they ran.

    Parameters
    ----------
    models : fitted model, or list or dict of such
        Anything with ``loss_curve_`` and, against time, ``time_curve_``. In place of a model there
        may be an array of errors or, within a list or dict, a pair of arrays (seconds, errors). The
        keys of a dict are what the curves are called.
    against : {"iterations", "time"}
        What the horizontal axis shows.
    ax : matplotlib.axes.Axes, optional
        Where to draw; on a new figure if not given.

    Returns
    -------
    matplotlib.axes.Axes
        With one line per model, in the given order.

    Examples
    --------
    >>> from groupsparse import plotting
    >>> ax = plotting.error_curves({"slow": [0.9, 0.5, 0.4], "fast": [0.6, 0.3]})
    >>> [line.get_ydata().tolist() for line in ax.lines]
    [[0.9, 0.5, 0.4], [0.6, 0.3]]
    """
    if against not in ("iterations", "time"):
        raise InvalidInput(f"against is {against!r}; expected 'iterations' or 'time'")
    single = hasattr(models, "loss_curve_") or (isinstance(models, np.ndarray) and models.ndim == 1)
    curves = {name: _errors(name, model, against) for name, model in _each(models, single).items()}
    ax = axes_on(ax, 5.5, 3.4)
    for place, (name, (steps, errors)) in enumerate(curves.items()):
        look = style(place) | {"markevery": max(1, len(errors) // 8), "markersize": 4}
        ax.plot(steps, errors, label=name, linewidth=1.6, **look)
    ax.set_yscale("log")
    _plain_ticks(ax)
    ax.set_xlabel("iteration" if against == "iterations" else "seconds")
    if against == "iterations":
        from matplotlib.ticker import MaxNLocator

        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.set_ylabel("relative error")
    tidy(ax)
    if not single:
        ax.legend(frameon=False)
    return ax


def accuracy_curves(
    results: Mapping[str, Mapping[float, Any]],
    *,
    dense: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the accuracy of pruned networks against their fraction of zeros, method by method.

    Parameters
    ----------
    results : mapping of methods to mappings of sparsity to accuracy
        An accuracy is one number or those of several runs: of these the average is drawn, with a
        bar of one standard deviation up and down.
    dense : float or list of floats, optional
        The accuracy without pruning, a horizontal line.
    ax : matplotlib.axes.Axes, optional
        Where to draw; on a new figure if not given.

    Returns
    -------
    matplotlib.axes.Axes
        With one ``ErrorbarContainer`` per method in ``ax.containers``. The horizontal axis is
        logarithmic in what is left where all sparsities are between 0 and 1, so that 90 % and
        99 % stand well apart.

    Examples
    --------
    >>> from groupsparse import plotting
    >>> ax = plotting.accuracy_curves({"ours": {0.9: [97, 99], 0.99: [91, 93]}}, dense=99)
    >>> ax.containers[0].lines[0].get_ydata().tolist()
    [98.0, 92.0]
    """
    if not results:
        raise InvalidInput("results is empty; expected at least one method")
    ax = axes_on(ax, 5.5, 3.8)
    places = sorted({float(sparsity) for runs in results.values() for sparsity in runs})
    if not places or not 0.0 <= places[0] <= places[-1] <= 1.0:
        raise InvalidInput(f"the sparsities are {places}; expected fractions of zeros in [0, 1]")
    if places[0] > 0.0 and places[-1] < 1.0:
        ax.set_xscale("logit")
    for place, (method, runs) in enumerate(results.items()):
        _one_method(ax, place, method, runs)
    if dense is not None:
        ax.axhline(float(numbers(dense).mean()), color="0.4", linewidth=1, zorder=1, label="dense")
    labels = [f"{100 * place:.4g} %" for place in places]
    if len(labels) > CROWDED:
        ax.set_xticks(places, labels, rotation=90)
    else:
        ax.set_xticks(places, labels)
    ax.set_xticks([], minor=True)
    ax.set(xlabel="zeros", ylabel="accuracy")
    tidy(ax)
    legend_above(ax, columns=3)
    return ax


def _one_method(ax: Axes, place: int, method: str, runs: Mapping[float, Any]) -> None:
    values = {float(sparsity): numbers(found).ravel() for sparsity, found in sorted(runs.items())}
    if empty := [sparsity for sparsity, found in values.items() if found.size == 0]:
        raise InvalidInput(f"results[{method!r}][{empty[0]}] is empty; expected an accuracy")
    several = any(found.size > 1 for found in values.values())
    ax.errorbar(
        list(values),
        np.array([found.mean() for found in values.values()]),
        yerr=np.array([found.std() for found in values.values()]) if several else None,
        label=method,
        capsize=3,
        markersize=5,
        linewidth=1.6,
        **style(place),
    )


def _each(models: Any, single: bool) -> dict[str, Any]:
    if single:
        return {"error": models}
    found = named(models)
    if not found:
        raise InvalidInput("models is empty; expected at least one fitted model")
    return found


def _errors(name: str, model: Any, against: str) -> Curve:
    """Where along the horizontal axis, and the errors there."""
    if hasattr(model, "loss_curve_"):
        errors, seconds = numbers(model.loss_curve_), getattr(model, "time_curve_", None)
    else:
        given = numbers(model)
        seconds, errors = given if given.ndim == 2 and len(given) == 2 else (None, given)
    if errors.ndim != 1 or errors.size == 0:
        raise InvalidInput(
            f"models[{name!r}] has no curve of errors; expected loss_curve_, or an array of them"
        )
    if against == "iterations":
        return np.arange(1.0, len(errors) + 1), errors
    if seconds is None:
        raise InvalidInput(
            f"models[{name!r}] has no times; expected time_curve_, or a pair (seconds, errors)"
        )
    return numbers(seconds), errors


def _plain_ticks(ax: Axes) -> None:
    """Write 0.3 and not 3 × 10⁻¹ on a logarithmic axis, unless it spans too much for that."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = ax.get_ylim()
    if high > 60 * low:
        return
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(LogLocator(subs=()))
