"""``groupsparse nmf``: factorise a matrix or a folder of images into sparse parts."""

from __future__ import annotations

import time
import warnings
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import missing_extra
from ..storage.atomic import replacing
from .console import messages, number, output
from .data import load, shape_for
from .options import check_folder
from .parts import Parts

PICTURES = (".png", ".pdf", ".svg", ".jpg")


class Solver(StrEnum):
    """The algorithms of the estimator."""

    auto = "auto"
    ahals = "ahals"
    nenmf = "nenmf"
    l1_ahals = "l1-ahals"
    csp = "csp"
    gsp = "gsp"


class Init(StrEnum):
    """Where a factorisation starts."""

    random = "random"
    nndsvd = "nndsvd"
    nndsvda = "nndsvda"
    nndsvdar = "nndsvdar"


def nmf(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help=".npy, .npz, .mat, .csv or a folder of images.")
    ],
    rank: Annotated[
        int | None, typer.Option(min=1, help="Number of parts. [default: that of --resume]")
    ] = None,
    hoyer_h: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Target average Hoyer measure of the parts, rows of H."
        ),
    ] = None,
    hoyer_w: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="The same for the codes, columns of W."),
    ] = None,
    per_vector: Annotated[
        bool, typer.Option("--per-vector", help="Every vector meets the target by itself.")
    ] = False,
    solver: Annotated[Solver, typer.Option(help="auto is the best one.")] = Solver.auto,
    init: Annotated[Init | None, typer.Option(help="Where to start.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 0,
    max_iter: Annotated[int, typer.Option(min=1, help="Iterations at most.")] = 500,
    max_time: Annotated[float | None, typer.Option(min=0.0, help="Seconds at most.")] = None,
    tol: Annotated[
        float, typer.Option(min=0.0, help="Smaller gains end the fit; 0: never.")
    ] = 1e-4,
    out: Annotated[
        Path, typer.Option(help="Where to write W, H, the curves and the settings.")
    ] = Path("parts.npz"),
    plot: Annotated[Path | None, typer.Option(help="Draw the parts into this file.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH of a part's picture, if it is not square.")
    ] = None,
    column_major: Annotated[
        bool,
        typer.Option("--column-major", help="Pictures run down their columns, as in MATLAB."),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on from a file that this command has written; what is not given (rank, "
            "targets, --solver, --key, --columns) is as it was there."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Which array of a .npz or .mat file to take.")
    ] = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="The samples are the columns of the file.")
    ] = False,
) -> None:
    """Factorise DATA into W H, both non-negative, with sparse parts.

    Samples are rows: one image, one document per row of DATA and of W, one part per row of H. A
    stack of images (three axes) is taken image by image. Ctrl-C ends the fit, keeps the best
    factors so far and writes them.
    """
    _check_writable(out, plot)
    if resume is not None and init is not None:
        raise typer.BadParameter("--resume starts from the saved factors; leave out --init")
    earlier = None if resume is None else Parts.read(resume)
    if earlier is not None:
        then = earlier.settings
        rank, key, columns = rank or len(earlier.h), key or then["key"], columns or then["columns"]
        if hoyer_h is None and hoyer_w is None:
            hoyer_h, hoyer_w = then["hoyer_h"], then["hoyer_w"]
            per_vector = per_vector or then["per_vector"]
            solver = Solver(then["solver"]) if solver is Solver.auto else solver
    if rank is None:
        raise typer.BadParameter("how many parts? give --rank")
    samples, known = load(data, key, columns)
    if earlier is not None:
        earlier.check(resume, samples.shape, rank)
    picture = None if plot is None else shape_for(shape, known, samples.shape[1])
    settings: dict[str, Any] = {
        "data": str(data), "key": key, "columns": columns, "rank": rank, "hoyer_h": hoyer_h,
        "hoyer_w": hoyer_w, "per_vector": per_vector, "solver": solver.value,
        "init": None if init is None else init.value, "seed": seed, "max_iter": max_iter,
        "max_time": max_time, "tol": tol, "resumed": None if resume is None else str(resume),
    }  # fmt: skip
    parts, model = _fit(samples, settings, earlier)
    parts.save(out)
    if plot is not None:
        _draw(parts.h, plot, picture or (1, samples.shape[1]), column_major)
    _report(parts, model, out, plot)
    if model.stopped_by_ == "interrupted":
        raise typer.Exit(130)


def _check_writable(out: Path, plot: Path | None) -> None:
    if out.suffix.lower() != ".npz":
        raise typer.BadParameter(f"--out is {out}; expected a name that ends in .npz")
    for path in filter(None, (out, plot)):
        check_folder(path)
    if plot is not None:
        if plot.suffix.lower() not in PICTURES:
            raise typer.BadParameter(f"--plot is {plot}; expected one of {', '.join(PICTURES)}")
        if find_spec("matplotlib") is None:
            raise missing_extra("matplotlib", "plot")


def _fit(samples: Any, settings: dict[str, Any], earlier: Parts | None) -> tuple[Parts, Any]:
    from ..nmf import GroupSparseNMF  # first: it says which extra is missing

    from sklearn.exceptions import ConvergenceWarning  # isort: skip

    with _Live(settings["max_iter"], settings["max_time"]) as live, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said at the end, in a sentence
        model = GroupSparseNMF(
            settings["rank"],
            hoyer_W=settings["hoyer_w"],
            hoyer_H=settings["hoyer_h"],
            per_vector=settings["per_vector"],
            solver=settings["solver"],
            init=settings["init"] if earlier is None else "custom",
            tol=settings["tol"],
            max_iter=settings["max_iter"],
            max_time=settings["max_time"],
            random_state=settings["seed"],
            callback=live,
        )
        start = {} if earlier is None else {"W": earlier.w, "H": earlier.h}
        codes = model.fit_transform(samples, **start)
    settings |= {"stopped_by": model.stopped_by_, "iterations": int(model.n_iter_)}
    parts = Parts(codes, model.components_, model.loss_curve_, model.time_curve_, settings)
    return (parts if earlier is None else parts.after(earlier)), model


def _draw(h: Any, path: Path, shape: tuple[int, int], column_major: bool) -> None:
    from ..plotting import basis_images

    if column_major:
        h = h.reshape(len(h), *shape[::-1]).swapaxes(1, 2).reshape(len(h), -1)
    figure: Any = basis_images(h, shape).figure
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=150, bbox_inches="tight")


def _report(parts: Parts, model: Any, out: Path, plot: Path | None) -> None:
    from .. import zero_fraction

    reasons = {
        "converged": "converged",
        "max_iter": "stopped by --max-iter",
        "max_time": "stopped by --max-time",
        "interrupted": "interrupted, the best factors are kept",
    }
    console = output()
    lines = (
        f"{reasons.get(model.stopped_by_, model.stopped_by_)} after {model.n_iter_} iterations, "
        f"{model.time_curve_[-1]:.1f} s",
        f"error    {100 * parts.losses[-1]:.4f} % of the norm of the data",
        f"parts H  Hoyer {number(model.hoyer_H_)}, {zero_fraction(parts.h):.1%} zeros",
        f"codes W  Hoyer {number(model.hoyer_W_)}, {zero_fraction(parts.w):.1%} zeros",
        f"wrote {out}" + (f" and {plot}" if plot else ""),
    )
    for line in lines:
        console.print(line, soft_wrap=True)


class _Live:
    """A bar with error, sparsity and the time left, on stderr while it is a terminal."""

    def __init__(self, max_iter: int, max_time: float | None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        console = messages()
        self.max_iter, self.max_time = max_iter, max_time
        self.shown = 0.0
        self.progress = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("starting", total=max_iter)

    def __enter__(self) -> _Live:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, now: Any) -> None:
        """What the estimator calls after every iteration."""
        clock = time.monotonic()
        if self.progress.disable or clock - self.shown < 0.1:
            return
        self.shown = clock
        left = now.seconds / now.iteration * (self.max_iter - now.iteration)
        if self.max_time is not None:
            left = min(left, max(self.max_time - now.seconds, 0.0))
        self.progress.update(
            self.task,
            completed=now.iteration,
            description=f"error {100 * now.loss:.3f} %  Hoyer(H) {number(now.hoyer)}  "
            f"at most {left:.0f} s left",
        )
