"""Part two: real images as sums of parts, without a target, one for every part, one for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import plotting
from ...plotting.canvas import new_figure
from ...sparsity import average_hoyer, hoyer, zero_fraction
from .digits import SIDE, load, one_of_each
from .page import Picture, Section, figure_of, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS, TARGET = 16, 0.85
PLAIN, EACH, GROUP = "no target", "every part alike", "average of all parts"
SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    EACH: {"hoyer_H": TARGET, "per_vector": True},
    GROUP: {"hoyer_H": TARGET},
}
_SAYS = {
    PLAIN: "Parts are as dense as they come.",
    EACH: "All parts are equally sparse.",
    GROUP: "Parts differ, as the images need it.",
}


@dataclass(frozen=True)
class Fit:
    """One way to factorise: the model and images of the first start, the errors of all of them."""

    model: Any
    images: NDArray[np.float64]
    errors: list[float]

    @property
    def error(self) -> float:
        """The average over the starts of ‖X − WH‖/‖X‖, in percent."""
        return float(np.mean(self.errors))

    @property
    def parts(self) -> NDArray[np.float64]:
        """The parts, the densest one first."""
        found = self.model.components_
        return np.asarray(found[np.argsort(hoyer(found))])


def run(*, quick: bool) -> tuple[Section, str]:
    """Factorise, and return the section and the line that the terminal shows."""
    # scikit-learn brings it.
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from ...nmf import GroupSparseNMF

    images, labels = load()
    shown = one_of_each(labels)
    starts, iterations = (1, 40) if quick else (3, 200)
    fits = {}
    # These matrices are too small to share: threads would only wait for each other.
    with threadpool_limits(1, user_api="blas"):
        for name, setting in SETTINGS.items():
            models, errors = [], []
            for seed in range(starts):
                model = GroupSparseNMF(
                    PARTS, init="random", random_state=seed, max_iter=iterations, tol=0, **setting
                )
                codes = model.fit_transform(images)
                errors.append(100 * model.reconstruction_err_ / float(np.linalg.norm(images)))
                models.append((model, codes[shown] @ model.components_))
            fits[name] = Fit(*models[0], errors)
    line = ", ".join(f"{name}: error {fit.error:.2f} %" for name, fit in fits.items())
    return section(images[shown], fits), line


def section(originals: NDArray[np.float64], fits: Mapping[str, Fit]) -> Section:
    """The part of the page."""
    each, group = fits[EACH], fits[GROUP]
    made = Section(
        "factorisation",
        "Pictures as sums of simple parts",
        f"At the same average sparsity, sharing the target rebuilds the images with an error of "
        f"**{group.error:.2f} %**; forcing every part to it, {each.error:.2f} %.",
    )
    made.say(
        f"1797 small scans of handwritten digits are each to be rebuilt from the same {PARTS} "
        "building blocks, by adding some of them up in suitable strengths. This is called "
        "non-negative matrix factorisation. Nobody tells the computer what the blocks are; it "
        "finds them.",
        "A block is easier to understand when it is **sparse**: one stroke of the pen and not "
        "half a digit. We compare three ways to ask for that: not at all, the same sparsity for "
        "every block, and, what this library is about, one average for all blocks together, so "
        "that each one can be as simple or as rich as the images need it to be.",
    )
    made.show(*(_parts(name, fit) for name, fit in fits.items()))
    made.table(
        ("target", "error", "average Hoyer", "least to most", "zeros"),
        [_row(name, fit) for name, fit in fits.items()],
        f"The error is that of all images, averaged over {len(group.errors)} random starts; the "
        "rest is of the parts shown above. With a target, the average Hoyer measure asked for "
        f"was {TARGET}.",
    )
    made.note(
        "How to read it: sparser parts can do less, so the error grows. The question is by how "
        "much. Parts that share a target differ among themselves (the column “least to most”): "
        "detail stays where it is needed."
    )
    made.show(
        Picture(
            "rebuilt",
            rebuilt(originals, fits),
            "Ten digits as scanned, and rebuilt from the parts of each factorisation",
            "One scan of each digit, and what the parts make of it.",
        ),
        Picture(
            "errors",
            figure_of(plotting.error_curves({name: fit.model for name, fit in fits.items()})),
            "Falling curves of the error over the iterations",
            "The error as the computation ran. It never rises, and where there is a target it is "
            "met at every step, so one may stop at any time.",
        ),
    )
    return made


def rebuilt(originals: NDArray[np.float64], fits: Mapping[str, Fit]) -> Figure:
    """The scans and their approximations, row by row."""
    rows = {"as scanned": originals} | {name: fit.images for name, fit in fits.items()}
    figure = new_figure(5.6, 0.86 * len(rows))
    for axes, (name, images) in zip(figure.subplots(len(rows)), rows.items(), strict=True):
        plotting.basis_images(images, (SIDE, SIDE), columns=len(images), scale="all", ax=axes)
        axes.set_title(name, loc="left", fontsize="medium", pad=2)
    return figure


def _parts(name: str, fit: Fit) -> Picture:
    found = fit.parts
    labels = [f"{measure:.2f}" for measure in hoyer(found)]
    axes = plotting.basis_images(found, (SIDE, SIDE), labels=labels)
    axes.set_title(name, fontsize="medium")
    return Picture(
        f"parts-{name.replace(' ', '-')}",
        figure_of(axes),
        f"{len(found)} small images, the parts found with the target: {name}",
        f"**{name.capitalize()}.** {_SAYS[name]} Dark is ink; over each part stands its Hoyer "
        "measure.",
    )


def _row(name: str, fit: Fit) -> tuple[str, ...]:
    measures = hoyer(fit.parts)
    return (
        name,
        f"{fit.error:.2f} %",
        f"{average_hoyer(fit.parts):.4f}",
        f"{measures.min():.2f} to {measures.max():.2f}",
        percent(zero_fraction(fit.parts)),
    )
