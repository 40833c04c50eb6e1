"""The picture of Table 1: accuracy against zeros."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from experiments import recipe
from experiments.candidates import EVERYTHING
from experiments.report_cifar import (
    FIGURE,
    Cells,
    cells_of,
    choice_of,
    epochs_of,
    records_in,
    runs_of,
)

# Okabe and Ito's colours, which colour-blind readers can tell apart; markers differ as well.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#F0E442", "#999999")
MARKERS = "osD^vPX<"
CHOSEN = "#D55E00"
FEW = 3  # so many other rows get a panel of their own
BELOW = 12.0  # points under the best row; the table has the figures of what fell further


def draw(records: Path, figures: Path) -> None:
    """The chosen recipe and its rivals on the left, all other rows on the right."""
    found = records_in(records)
    runs = runs_of(found, "table1")
    cells = cells_of(runs)
    if not cells:
        return
    from matplotlib.figure import Figure

    choice = choice_of(found)
    order = list(EVERYTHING)
    labels = sorted({label for label, level in cells if level}, key=order.index)
    first = [*recipe.COMPARED, choice.paper, choice.recipe]
    others = [label for label in labels if label not in first]
    if len(others) < FEW:
        parts = [("", labels)]
    else:
        parts = [
            ("the chosen recipe and its rivals", [label for label in labels if label in first]),
            ("the other rows", others),
        ]
    figure = Figure(figsize=(2.0 + 4.5 * max(len(parts), 1.4), 6.2), layout="constrained")
    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    for axes, (title, own) in zip(panels, parts, strict=True):
        _panel(axes, cells, own, choice.recipe)
        axes.set(xlabel="zeros, %", title=title)
    panels[0].set_ylabel("test accuracy, %")
    trunk, leaf = epochs_of(runs)
    seeds = len({run["seed"] for run in runs})
    figure.suptitle(
        f"VGG-16 on CIFAR-10: {trunk} epochs, {leaf} of finetuning, "
        f"{'one seed' if seeds == 1 else f'{seeds} seeds'}",
        fontsize="medium",
    )
    figures.mkdir(parents=True, exist_ok=True)
    figure.savefig(figures / FIGURE, dpi=90)


def _panel(axes: Any, cells: Cells, labels: list[str], chosen: str) -> None:
    dense = cells.get(("dense", 0.0))
    lines = 0
    means: list[float] = []
    for label in labels:
        points = sorted((lv, list(v.values())) for (name, lv), v in cells.items() if name == label)
        middle = [statistics.mean(values) for _, values in points]
        means += middle
        if label == chosen:
            colour, marker, width = CHOSEN, "*", 2.6
        else:
            colour, marker, width = COLOURS[lines % 8], MARKERS[lines % 8], 1.3
            lines += 1
        axes.errorbar(
            # Zeros get ever dearer: by the share that is left, halving it is one step to the right.
            [100 * (1 - level) for level, _ in points], middle,
            # No bar where a single seed says nothing about the spread.
            yerr=[statistics.stdev(v) if len(v) > 1 else float("nan") for _, v in points]
            if any(len(v) > 1 for _, v in points) else None,
            label=label + (" (chosen)" if label == chosen else ""), color=colour, marker=marker,
            linewidth=width, markersize=9 if label == chosen else 5, capsize=2,
            linestyle="-" if lines <= 8 else "--",
        )  # fmt: skip
    top = max([*means, *(dense or {}).values()], default=100.0)
    if dense:
        axes.axhline(statistics.mean(dense.values()), color="0.6", linewidth=1, label="dense")
    near = [mean for mean in means if mean > top - BELOW]
    axes.set(xscale="log", ylim=(min(near, default=0.0) - 0.5, top + 0.5))
    axes.invert_xaxis()
    ticks = sorted({round(100 * (1 - level), 3) for _, level in cells if level})
    axes.set_xticks(ticks, [f"{100 - tick:g}" for tick in ticks], fontsize="small")
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(
        frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2
    )
