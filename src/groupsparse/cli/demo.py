"""``groupsparse demo``: the main job end to end on real data, and one page that shows it."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from .. import __version__
from ..errors import MissingExtra
from ..storage.atomic import replacing
from ._demo.page import Section, page

NEEDED = {"sklearn": ("scikit-learn", "sklearn"), "torch": ("torch", "torch")} | {
    "safetensors": ("safetensors", "torch"),
    "matplotlib": ("matplotlib", "plot"),
}
TITLE = "groupsparse: one number in, sparsity out"
OPENING = (
    "Many things become easier to read, to store and to compute when most of their numbers are "
    "**exactly zero**. This library makes that happen with one knob: you say how sparse a "
    "collection of lists should be **on average**, and it returns the closest collection that is, "
    "deciding by itself which lists become sparse and which stay dense.",
    "Two measures appear on this page. **Zeros** is the share of numbers that are exactly zero. "
    "The **Hoyer measure** says how unequal the numbers of a list are: 0 where all are equally "
    "large, 1 where a single one is left. The Hoyer measure is what you ask for; zeros are what "
    "you get from it.",
)
PASTE = """
# 64 lists of numbers, average Hoyer measure 0.8
import numpy as np
import groupsparse as gs

filters = np.random.default_rng(0).standard_normal((64, 144))
sparse = gs.project(filters, 0.8)
print(gs.average_hoyer(sparse), gs.zero_fraction(sparse))

# images as sums of sparse parts
from groupsparse.nmf import GroupSparseNMF

images = np.random.default_rng(0).random((200, 64))
model = GroupSparseNMF(9, hoyer_H=0.85, max_iter=100, tol=0)
codes = model.fit_transform(images)
print(model.hoyer_H_, model.components_.shape)

# networks
import torch
from torch.nn import Linear, ReLU, Sequential
from groupsparse import prune

net = Sequential(Linear(64, 100), ReLU(), Linear(100, 10))
prune.project_(net, prune.Plan(hoyer=0.8))
prune.cut(net, sparsity=0.9)
print(prune.report(net))
"""


def demo(out: Path = Path("build/demo"), open_: bool = False) -> None:
    """Project, factorise and prune on data that ships with scikit-learn, and write a report.

    Parameters
    ----------
    out : Path
        The folder for ``report.html``, which needs nothing else, and for its pictures as files.
    open_ : bool
        Whether to open the report in the browser.
    """
    report = build(Path(out))
    print(f"report: {report}")
    if open_:
        import webbrowser

        webbrowser.open(report.resolve().as_uri())


def build(out: Path, *, quick: bool = False) -> Path:
    """Run the three parts and write the page; ``quick`` trains too little to say anything."""
    missing = [needed for module, needed in NEEDED.items() if find_spec(module) is None]
    if missing:
        packages = ", ".join(package for package, _ in missing)
        extras = ",".join(dict.fromkeys(extra for _, extra in missing))
        raise MissingExtra(f"the demo also needs {packages}: pip install 'groupsparse[{extras}]'")
    from ._demo import factorisation, projection, pruning

    out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[], tuple[Section, str]]] = {
        "projecting four lists of numbers": projection.run,
        "factorising 1797 images three ways": lambda: factorisation.run(quick=quick),
        "training and pruning networks four ways": lambda: pruning.run(quick=quick),
    }
    sections, spent = [], []
    for place, (what, run) in enumerate(parts.items(), start=1):
        print(f"{place}/{len(parts)} {what} ...", flush=True)
        began = time.perf_counter()
        section, line = run()
        spent.append(time.perf_counter() - began)
        print(f"    {line} ({spent[-1]:.0f} s)", flush=True)
        sections.append(section)
        for name, png in section.pictures.items():
            _write(out / f"{name}.png", png)
    report = out / "report.html"
    _write(report, page(TITLE, OPENING, [*sections, _yours()], _origin(spent)).encode())
    return report


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def _yours() -> Section:
    section = Section("yours", "Now yours", "")
    section.say("The same three things, in lines to paste:")
    section.code(PASTE)
    return section


def _origin(spent: list[float]) -> str:
    import sklearn
    import torch

    seconds = " + ".join(f"{part:.0f}" for part in spent)
    return (
        f"Everything on this page was computed just before it was written, in {seconds} seconds, "
        f"by `groupsparse demo`: groupsparse {__version__}, Python {platform.python_version()}, "
        f"PyTorch {torch.__version__}, scikit-learn {sklearn.__version__}, {platform.system()} on "
        f"{platform.machine()}. The digits are from the UCI collection that scikit-learn ships."
    )


if __name__ == "__main__":
    demo(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/demo"))
