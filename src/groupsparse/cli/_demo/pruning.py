"""Part three: a network that reads digits loses nearly all of its parameters."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import plotting
from .page import Picture, Section, figure_of, percent

INDUCED, SINGLE = "induced GSP", "single-shot GSP"
MAGNITUDE, RANDOM = "magnitude", "random"
METHODS = (INDUCED, SINGLE, MAGNITUDE, RANDOM)
TARGET = 0.7
RATE, REPAIR_RATE = 0.05, 0.1

Accuracies = dict[str, dict[float, list[float]]]


@dataclass(frozen=True)
class Effort:
    """How much is trained: the whole demo has two minutes on two cores."""

    seeds: Sequence[int]
    epochs: int
    repair: int
    sparsities: Sequence[float]


FULL = Effort(seeds=(0, 1, 2), epochs=20, repair=8, sparsities=(0.9, 0.95, 0.98))
QUICK = Effort(seeds=(0,), epochs=3, repair=1, sparsities=(0.9, 0.98))


@dataclass
class Found:
    """Accuracies in percent, for each method and fraction of zeros one per seed."""

    dense: list[float] = field(default_factory=list)
    cut: Accuracies = field(default_factory=dict)
    repaired: Accuracies = field(default_factory=dict)
    reports: dict[str, Any] = field(default_factory=dict)
    layers_at: float = 0.0


def run(*, quick: bool) -> tuple[Section, str]:
    """Train and prune, and return the section and the line that the terminal shows."""
    effort = QUICK if quick else FULL
    found = measure(effort)
    line = f"right with all parameters: {np.mean(found.dense):.1f} %; " + ", ".join(
        f"{method} {np.mean(found.repaired[method][found.layers_at]):.1f} %" for method in METHODS
    )
    return section(found, effort), f"{line} with {found.layers_at:.0%} zeros"


def measure(effort: Effort) -> Found:
    """Every method at every fraction of zeros, from the same starts."""
    import torch

    from . import training

    found = Found()
    found.layers_at = effort.sparsities[len(effort.sparsities) // 2]
    with _one_thread(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        given = training.data()
        for seed in effort.seeds:
            dense = training.network(seed)
            training.train(dense, training.sgd(dense, RATE), given, effort.epochs, seed)
            found.dense.append(training.accuracy(dense, given))
            induced = _induced(given, effort.epochs, seed)
            for sparsity in effort.sparsities:
                for method in METHODS:
                    model = copy.deepcopy(induced if method == INDUCED else dense)
                    _prune(found, method, model, sparsity, given, effort.repair, seed)
    return found


def _induced(given: Any, epochs: int, seed: int) -> Any:
    """A network that was projected every few steps while it was trained."""
    from ... import prune
    from . import training

    model = training.network(seed)
    optimizer = training.sgd(model, RATE)
    steps = given.steps(epochs)
    span = {"every": 5, "start": steps // 5, "stop": steps * 7 // 10}
    with prune.Inducer(model, prune.Plan.paper(TARGET), optimizer, schedule=prune.cubic(), **span):
        training.train(model, optimizer, given, epochs, seed)
    return model


def _prune(
    found: Found, method: str, model: Any, sparsity: float, given: Any, epochs: int, seed: int
) -> None:
    """Cut, measure, repair by some more training with the zeros held, measure again."""
    from ... import prune
    from . import training

    # A layer that lost everything is a result here, and its accuracy says so.
    warnings.simplefilter("ignore", prune.LayerCollapse)
    if method == SINGLE:
        prune.project_(model, prune.Plan.paper(TARGET))
    if method == RANDOM:
        masks = prune.baselines.random(model, sparsity, seed=seed)
    else:
        masks = prune.cut(model, sparsity)
    found.cut.setdefault(method, {}).setdefault(sparsity, []).append(
        training.accuracy(model, given)
    )
    optimizer = training.sgd(model, REPAIR_RATE)
    with masks.frozen(model, optimizer):
        training.train(model, optimizer, given, epochs, seed)
    found.repaired.setdefault(method, {}).setdefault(sparsity, []).append(
        training.accuracy(model, given)
    )
    if sparsity == found.layers_at and method != RANDOM:
        found.reports[method] = prune.report(model)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The network is too small to share, and one thread adds up in the same order everywhere."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def section(found: Found, effort: Effort) -> Section:
    """The part of the page."""
    at = found.layers_at
    dense = float(np.mean(found.dense))
    total = found.reports[INDUCED].total
    made = Section(
        "pruning",
        "A network that forgets nearly all of itself",
        f"With **{percent(at)}** of its parameters set to zero, a network trained with the "
        f"projection still reads {np.mean(found.repaired[INDUCED][at]):.1f} % of unseen digits "
        f"correctly; the complete one {dense:.1f} %, the common recipe "
        f"{np.mean(found.repaired[MAGNITUDE][at]):.1f} %.",
    )
    made.say(
        f"A small neural network with {total.parameters:,} parameters learns to tell which digit "
        "a scan shows. Most of its parameters can be removed, which makes its file smaller; the "
        "question is which ones. We compare four answers. All of them end with exactly the same "
        "number of zeros, and all are trained a little more afterwards, with the zeros held at "
        "zero: the repair.",
    )
    made.table(
        ("method", "how it chooses"),
        [
            (INDUCED, "the projection runs during training, so the network grows into it"),
            (SINGLE, "train as usual, project once, then remove the smallest"),
            (MAGNITUDE, "train as usual, remove the smallest: the common recipe"),
            (RANDOM, "train as usual, remove any: the floor to stand above"),
        ],
        "The first two are the strategies of the paper that this library implements, with a "
        f"target of {TARGET} for every layer.",
        words=("how it chooses",),
    )
    made.heading("How much it still gets right")
    made.table(
        ("method", *(f"{percent(sparsity)} zeros" for sparsity in effort.sparsities)),
        _accuracy_rows(found.repaired),
        f"Percent of {_tested()} images that no network was trained on: average and standard "
        f"deviation of {len(effort.seeds)} training runs, after {effort.repair} more passes over "
        f"the training images. The complete network gets {dense:.1f} ± {np.std(found.dense):.1f}.",
    )
    made.show(
        Picture(
            "accuracy-cut",
            _curves(found.cut, found.dense, "before repair"),
            "Accuracy against the fraction of zeros, right after the cut",
            "Right after the cut one sees how well a network was prepared for it. Only the first "
            "method prepares it while it trains.",
        ),
        Picture(
            "accuracy-repaired",
            _curves(found.repaired, found.dense, "after repair"),
            "Accuracy against the fraction of zeros, after some more training",
            "After the repair. The grey line is the complete network; bars are one standard "
            "deviation.",
        ),
    )
    made.say(_comparison(found))
    made.note(
        "What not to read into it: this network and its images are tiny, and differences smaller "
        "than the bars are chance. On larger networks the order can be another one: the page "
        "“Which method for my network?” of the documentation shows what was measured there."
    )
    made.heading("Where the zeros are")
    made.show(
        Picture(
            "layers",
            figure_of(plotting.layer_sparsity(found.reports)),
            "Bars with the fraction of zeros in each layer for three methods",
            f"Every layer at {percent(at)} zeros in total: bars are shares of zeros, dots Hoyer "
            "measures.",
        )
    )
    made.say(
        f"Stored without its zeros, the {percent(at)} network takes "
        f"{total.file_bytes / 1000:.1f} kB in place of {total.bytes / 1000:.1f} kB."
    )
    return made


def _accuracy_rows(
    found: Mapping[str, Mapping[float, Sequence[float]]],
) -> list[tuple[str, ...]]:
    return [
        (method, *(f"{np.mean(runs[z]):.1f} ± {np.std(runs[z]):.1f}" for z in sorted(runs)))
        for method, runs in found.items()
    ]


def _comparison(found: Found) -> str:
    """What the numbers say, whatever they are."""
    at, chosen = found.layers_at, (INDUCED, SINGLE, MAGNITUDE)
    cut, after = _averages(found.cut, at), _averages(found.repaired, at)
    first = max(cut, key=lambda method: cut[method])
    others = ", ".join(f"{method} {cut[method]:.1f} %" for method in chosen if method != first)
    spread = max(after[method] for method in chosen) - min(after[method] for method in chosen)
    most = max(found.repaired[INDUCED])
    last = _averages(found.repaired, most)
    best = max(last, key=lambda method: last[method])
    return (
        f"At {percent(at)} zeros, right after the cut, **{first}** still gets "
        f"{cut[first]:.1f} % right ({others}). After some more training these three lie "
        f"{spread:.1f} points apart. At {percent(most)} zeros the best of all is then "
        f"**{best}** with {last[best]:.1f} %."
    )


def _averages(found: Accuracies, sparsity: float) -> dict[str, float]:
    return {method: float(np.mean(runs[sparsity])) for method, runs in found.items()}


def _curves(found: Accuracies, dense: Sequence[float], when: str) -> Any:
    axes = plotting.accuracy_curves(found, dense=list(dense))
    axes.set(ylim=(0, 103), ylabel=f"right {when}, in percent")
    return figure_of(axes)


def _tested() -> int:
    from . import training

    return len(training.data().y_test)
