"""Part one: four lists of numbers share one target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import plotting
from ...plotting.canvas import AFTER, BEFORE, new_figure, tidy
from ...projection import solve
from ...result import Projection
from ...sparsity import average_hoyer, hoyer, zero_fraction
from .page import Picture, Section, figure_of, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Vectors = dict[str, NDArray[np.float64]]

SEED = 0
TARGET = 0.8
LENGTHS = (40, 90, 160, 250)


def vectors() -> Vectors:
    """Noise with a few spikes in it, more of them in each longer vector."""
    random = np.random.default_rng(SEED)
    made = {}
    for count, length in enumerate(LENGTHS, start=1):
        vector = 0.4 * random.standard_normal(length)
        vector[random.choice(length, size=4 * count, replace=False)] += 3.0
        made[f"length {length}"] = vector
    return made


def draw(before: Vectors, after: Vectors) -> Figure:
    """One panel for each vector: dots came in, bars came out. The README shows this picture."""
    figure = new_figure(5.6, 1.4 * len(before))
    for axes, (name, vector) in zip(figure.subplots(len(before)), before.items(), strict=True):
        places = np.arange(len(vector))
        axes.bar(places, after[name], width=1.0, color=AFTER, label="projected")
        axes.plot(places, vector, ".", color=BEFORE, markersize=3.5, label="given")
        axes.set(ylabel=name, xlim=(-1, len(vector)))
        tidy(axes)
    figure.axes[0].legend(
        frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize="small"
    )
    figure.axes[0].set_title(f"average Hoyer measure {TARGET}", loc="left", fontsize="medium")
    return figure


def run() -> tuple[Section, str]:
    """Project, and return the section and the line that the terminal shows."""
    before = vectors()
    p = solve(before, TARGET)
    line = (
        f"average Hoyer {average_hoyer(before):.3f} -> {p.hoyer:.12f} (asked for {TARGET}), "
        f"duality gap {p.gap:.0e}: {p.status}"
    )
    return section(before, p), line


def section(before: Vectors, p: Projection[Any]) -> Section:
    """The part of the page."""
    made = Section(
        "projection",
        "One number for many lists",
        f"Four lists of different lengths were asked for an average of {p.target}, and have "
        f"**{p.hoyer:.10f}**. A certificate proves that no better answer exists.",
    )
    made.say(
        "Here are four lists of numbers (mathematicians say: vectors), each with a few large "
        "ones in a lot of noise (the orange dots). We ask for one thing only: after the "
        f"projection their **average** Hoyer measure should be {p.target}. How much each list "
        "gives up for that is for the library to decide. It finds the closest lists that have "
        "this average (the blue bars): nearly all of the noise is gone, and the large numbers "
        "are still where they were.",
    )
    made.show(
        Picture(
            "projection",
            draw(before, p.value),
            "Four panels with the numbers of each list before and after the projection",
            "Dots: what came in. Bars: what came out. Where there is no bar, the number is now "
            "exactly zero.",
        )
    )
    made.show(
        Picture(
            "sparsity",
            figure_of(plotting.sparsity_before_after(before, p.value)),
            "Hoyer measure and fraction of zeros of each list, before and after",
            "Dots are Hoyer measures, bars are shares of zeros. The dashed line is the average "
            "that was asked for: some lists end above it, some below.",
        ),
        Picture(
            "multiplier",
            figure_of(plotting.multiplier_curve(before, p.target)),
            "A falling curve that crosses zero at the multiplier",
            "Behind it is one equation with one unknown: a price that every list pays for being "
            "dense. The curve falls, so it crosses zero once; the orange dot is that price.",
        ),
    )
    made.table(
        ("list", "Hoyer before", "Hoyer after", "zeros before", "zeros after"),
        [
            (
                name,
                f"{hoyer(vector):.3f}",
                f"{hoyer(p.value[name]):.3f}",
                percent(zero_fraction(vector)),
                percent(zero_fraction(p.value[name])),
            )
            for name, vector in before.items()
        ],
        "Each list by itself. Only the average of the third column was prescribed.",
    )
    made.heading("The certificate")
    made.say("Every answer of `solve` comes with numbers that anyone can check:")
    made.table(
        ("what", "value", "what it says"),
        [
            ("average asked for", f"{p.target}", "your one number"),
            ("average reached", f"{p.hoyer:.10f}", f"off by {abs(p.residual):.0e}"),
            ("duality gap", f"{p.gap:.0e}", "zero, up to rounding, proves the optimum"),
            (
                "multiplier",
                f"{p.multiplier:.6f}",
                "the price; it speeds up the next, similar problem",
            ),
            ("work", f"{p.passes} passes", f"over the data, with the kernel `{p.kernel}`"),
        ],
        f"Status: {p.status}.",
        words=("what it says",),
    )
    return made
