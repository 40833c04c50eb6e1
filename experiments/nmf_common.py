"""What the NMF experiments share: data, starts, one fit with everything that is reported of it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import groupsparse as gs
from experiments import record
from groupsparse.nmf import GroupSparseNMF

FIGURES = Path(__file__).resolve().parent / "figures"
ITERATIONS = 500

# Everything that is drawn side by side: a name and the arguments of the estimator. "hoyer" stands
# for the target of the experiment, where an algorithm takes one.
CONTENDERS: dict[str, dict[str, Any]] = {
    "auto": {"solver": "auto", "hoyer": True},
    "auto-each": {"solver": "auto", "hoyer": True, "per_vector": True},
    "gsp": {"solver": "gsp", "hoyer": True},
    "gsp-paper": {"solver": "gsp", "hoyer": True, "extrapolate": False},
    "csp": {"solver": "csp", "hoyer": True},
    "l1-ahals": {"solver": "l1-ahals", "hoyer": True},
    "auto-plain": {"solver": "auto"},
    "ahals": {"solver": "ahals"},
    "nenmf": {"solver": "nenmf"},
}
LABELS = {
    "auto": "auto (default), target on the average",
    "auto-each": "auto, target on every vector",
    "gsp": "gspNMF, extrapolated",
    "gsp-paper": "gspNMF as in the paper",
    "csp": "cspNMF",
    "l1-ahals": "ℓ₁ A-HALS",
    "auto-plain": "auto, no target",
    "ahals": "A-HALS",
    "nenmf": "NeNMF",
}


def data_folder(given: str | None = None) -> Path:
    """Where the real data lies: an argument or the variable GROUPSPARSE_DATA."""
    folder = given or os.environ.get("GROUPSPARSE_DATA")
    if not folder:
        raise SystemExit("say where the data is: --data FOLDER, or set GROUPSPARSE_DATA")
    return Path(folder)


def cbcl(folder: Path) -> np.ndarray:
    """Return the CBCL faces, one per row."""
    with np.load(folder / "faces" / "cbcl.npz", allow_pickle=False) as file:
        return np.ascontiguousarray(file["X"].T)


def orl(folder: Path) -> np.ndarray:
    """Return the ORL faces, 400 × 112 × 92, in [0, 1]."""
    with np.load(folder / "faces" / "orl.npz", allow_pickle=False) as file:
        return file["images"].astype(np.float64) / 255.0


def uniform_start(x: np.ndarray, r: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return W and H with uniform entries, as in the paper, scaled so that WH fits X best."""
    random = np.random.default_rng(seed)
    w, h = random.random((x.shape[0], r)), random.random((r, x.shape[1]))
    fit = np.vdot(w.T @ x, h) / np.vdot(w.T @ w, h @ h.T)
    return w * fit, h


def fit(
    x: np.ndarray,
    start: tuple[np.ndarray, np.ndarray],
    name: str,
    target: float,
    *,
    iterations: int = ITERATIONS,
    **more: Any,
) -> tuple[GroupSparseNMF, np.ndarray]:
    """Fit the contender of that name from that start, and return its model and codes."""
    arguments = dict(CONTENDERS[name])
    if arguments.pop("hoyer", False):
        arguments["hoyer_H"] = target
    model = GroupSparseNMF(
        start[1].shape[0], init="custom", max_iter=iterations, tol=0, **arguments, **more
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model, model.fit_transform(x, W=start[0], H=start[1])


def summary(x: np.ndarray, model: GroupSparseNMF, codes: np.ndarray) -> dict[str, float]:
    """Return what is reported of a fit; the error is formed anew from the factors."""
    components = model.components_
    return {
        "error %": 100 * float(np.linalg.norm(x - codes @ components) / np.linalg.norm(x)),
        "average hoyer": gs.average_hoyer(components),
        "least hoyer": float(np.min(gs.hoyer(components))),
        "zeros": gs.zero_fraction(components),
        "seconds": float(model.time_curve_[-1]),
        "revived": model.n_revived_,
    }


COLUMNS = ["algorithm", "error %, mean", "least", "largest", "average Hoyer", "seconds"]


def fit_rows(results: dict[str, dict[str, Any]], style: str) -> list[list[str]]:
    """Return one row of COLUMNS per algorithm; ``style`` is the format of the errors."""
    rows = []
    for name in CONTENDERS:
        if name not in results:
            continue
        fits = results[name]["fits"]
        errors = [f["error %"] for f in fits]
        rows.append(
            [LABELS[name]]
            + [format(value, style) for value in (np.mean(errors), min(errors), max(errors))]
            + [
                f"{np.mean([f['average hoyer'] for f in fits]):.6f}",
                f"{np.median([f['seconds'] for f in fits]):.2g}",
            ]
        )
    return rows


def records_of(prefix: str) -> dict[str, dict[str, Any]]:
    """Return the results of every algorithm that has a record of this experiment."""
    names = [n for n in CONTENDERS if (record.RECORDS / f"{prefix}_{n}.json").exists()]
    return {name: record.load(f"{prefix}_{name}")["results"] for name in names}


def draw_images(images: np.ndarray, path: Path, *, columns: int) -> None:
    """Save a mosaic of images, each stretched to its own range, dark where it is large."""
    from matplotlib import image

    rows = -(-len(images) // columns)
    height, width = images.shape[1:]
    page = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1), 0.8)  # the lines between
    for index, picture in enumerate(images):
        top = 1 + index // columns * (height + 1)
        left = 1 + index % columns * (width + 1)
        peak = picture.max()
        page[top : top + height, left : left + width] = 1 - picture / (peak if peak > 0 else 1)
    zoom = max(1, 420 // page.shape[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    image.imsave(path, np.kron(page, np.ones((zoom, zoom))), cmap="gray", vmin=0, vmax=1)


def draw_curves(curves: dict[str, list[float]], path: Path, *, title: str, floor: float) -> None:
    """Save error curves as the paper draws them: percent above the lowest error, by iteration."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        excess = np.maximum(np.asarray(curve) - floor, 1e-12)
        axes.semilogy(np.arange(1, len(curve) + 1), excess, label=LABELS[name])
    shown = f"relative error − {floor:.4g} (%)" if floor else "relative error (%)"
    axes.set(xlabel="iteration", ylabel=shown, title=title)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
