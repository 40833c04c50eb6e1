"""Project a set of vectors of different lengths, show the certificate, and draw what happened.

``make demo`` runs this::

    python -m experiments.demo_projection [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import groupsparse as gs

SEED = 0
TARGET = 0.8
LENGTHS = (40, 90, 160, 250)


def vectors() -> dict[str, np.ndarray]:
    """Return noise with a few spikes in it, more of them in each longer vector."""
    random = np.random.default_rng(SEED)
    made = {}
    for count, length in enumerate(LENGTHS, start=1):
        vector = 0.4 * random.standard_normal(length)
        vector[random.choice(length, size=4 * count, replace=False)] += 3.0
        made[f"length {length}"] = vector
    return made


def certificate(before: dict[str, np.ndarray], p: gs.Projection[dict[str, np.ndarray]]) -> str:
    """Return both measures of each vector, before and after, and what `solve` reports."""
    rows = [f"{'vector':12} {'hoyer':>18} {'zeros':>18}"]
    for name, vector in before.items():
        after = p.value[name]
        rows.append(
            f"{name:12} {float(gs.hoyer(vector)):8.3f} -> {float(gs.hoyer(after)):6.3f}"
            f" {gs.zero_fraction(vector):8.0%} -> {gs.zero_fraction(after):6.0%}"
        )
    return "\n".join(
        [
            *rows,
            f"average hoyer {gs.average_hoyer(before):.3f} -> {p.hoyer:.12f}, asked {p.target}",
            f"residual {p.residual:.1e}, multiplier {p.multiplier:.6f}, duality gap {p.gap:.1e}",
            f"{p.status} ({p.iterations} iterations, {p.passes} passes, kernel {p.kernel})",
        ]
    )


def draw(before: dict[str, np.ndarray], after: dict[str, np.ndarray], path: Path) -> None:
    """Save one panel for each vector: what came in as dots, what came out as bars."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.6 * len(before)), layout="constrained")
    for axes, (name, vector) in zip(figure.subplots(len(before)), before.items(), strict=True):
        places = np.arange(len(vector))
        axes.bar(places, after[name], width=1.0, color="#0072B2", label="projected")
        axes.plot(places, vector, ".", color="#D55E00", markersize=3, label="given")
        axes.set(ylabel=name, xlim=(-1, len(vector)))
    figure.axes[0].legend(frameon=False, ncols=2, loc="upper right", fontsize="small")
    figure.axes[0].set_title(f"projected to an average hoyer of {TARGET}")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the certificate and write the picture."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo")
    folder.mkdir(parents=True, exist_ok=True)
    before = vectors()
    p = gs.solve(before, TARGET)
    print(certificate(before, p))
    draw(before, p.value, folder / "projection.png")
    print(f"picture: {folder / 'projection.png'}")


if __name__ == "__main__":
    main()
