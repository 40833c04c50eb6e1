"""Which recipe of induced GSP is best, chosen on 5 000 images held out of the training set.

    python -m experiments.recipe --data DIR --epochs 12 --finetune 4 --seeds 0

The test set is not looked at. Each candidate is compared with one-shot and gradual magnitude
pruning at the same total number of epochs; finetuning rates are compared for one rival and one
recipe, and the best of them is used for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.candidates import EVERYTHING, PAPER, RECIPES, RIVALS, dense, jobs_of
from experiments.jobs import Job, Setting

LEVELS = (0.95, 0.98, 0.995)
RATES = (0.02, 0.1)  # of finetuning, at a batch of 128; besides the setting's own
RATED = ("magnitude", "GSP 0.9")
COMPARED = ("magnitude", "magnitude, floor", "gradual magnitude", "gradual magnitude, floor")
FIRST = (*COMPARED[:1], *list(RECIPES)[:6], "gradual magnitude", "magnitude, floor")
DEEPHOYER = ("DeepHoyer 1e-7", "DeepHoyer 1e-6")


@dataclass(frozen=True)
class Choice:
    """What the held-out images decide: recipes in their order, and a finetuning rate."""

    recipe: str = next(iter(RECIPES))
    paper: str = "induced GSP, paper 0.9"
    deephoyer: str = DEEPHOYER[0]
    rate: float = 0.05
    ranking: tuple[tuple[str, float], ...] = ()


def jobs(
    setting: Setting, seeds: Sequence[int] = (0,), levels: Sequence[float] = LEVELS
) -> list[Job]:
    """All candidates, the likely winners and the rivals first."""
    setting = replace(setting, table="recipe", split="search")
    found: list[Job] = []
    for turn, seed in enumerate(seeds):
        found += dense(setting, seed, (0, turn, 0))
        labels = [*FIRST, *(n for n in (*COMPARED, *PAPER, *DEEPHOYER, *RECIPES) if n not in FIRST)]
        for place, label in enumerate(dict.fromkeys(labels)):
            found += jobs_of(setting, label, levels, seed, priority=(0, turn, 1 + place))
        for rate in RATES:
            for label in RATED:
                changed = replace(setting, finetune_rate=rate * setting.batch / 128)
                found += jobs_of(changed, label, levels, seed, priority=(0, turn, 4))
    return list({job.name: job for job in found}.values())


def choose(
    lines: Iterable[Mapping[str, Any]],
    setting: Setting,
    levels: Sequence[float] = LEVELS,
) -> Choice:
    """The best of those that ran at every level, going by the mean over levels and seeds."""
    leaves = [line for line in lines if _is_leaf(line)]
    default = Choice(rate=setting.finetune_rate)
    by_rate: dict[float, dict[tuple[str, float], list[float]]] = {}
    for line in leaves:
        job = line["job"]
        rate = job["rate"] / EVERYTHING[job["label"]].rate
        cell = by_rate.setdefault(rate, {}).setdefault((job["label"], job["level"]), [])
        cell.append(line["accuracy"])
    scores = {rate: _complete(cells, RATED, levels) for rate, cells in by_rate.items()}
    rated = {r: sum(s.values()) for r, s in scores.items() if len(s) == len(RATED)}
    rate = max(rated, key=lambda r: rated[r]) if rated else default.rate
    own = by_rate.get(setting.finetune_rate, {})
    means = _complete(own, [*RECIPES, *PAPER, *DEEPHOYER, *COMPARED], levels)
    return Choice(
        recipe=_best(means, RECIPES, default.recipe),
        paper=_best(means, PAPER, default.paper),
        deephoyer=_best(means, DEEPHOYER, default.deephoyer),
        rate=rate,
        ranking=tuple(sorted(means.items(), key=lambda pair: -pair[1])),
    )


def _is_leaf(line: Mapping[str, Any]) -> bool:
    job = line["job"]
    return job["table"] == "recipe" and job["level"] > 0 and job["parent"] is not None


def _complete(
    cells: Mapping[tuple[str, float], Sequence[float]],
    labels: Iterable[str],
    levels: Sequence[float],
) -> dict[str, float]:
    """The mean over the levels, of the labels that have every one of them."""
    found = {}
    for label in labels:
        if all((label, level) in cells for level in levels):
            means = [sum(cells[label, level]) / len(cells[label, level]) for level in levels]
            found[label] = sum(means) / len(means)
    return found


def _best(means: Mapping[str, float], labels: Iterable[str], otherwise: str) -> str:
    there = [label for label in labels if label in means]
    return max(there, key=lambda label: means[label]) if there else otherwise


def all_rivals() -> tuple[str, ...]:
    """The labels of everything that is no recipe of GSP."""
    return tuple(RIVALS)


if __name__ == "__main__":
    from experiments.gpu_session import main

    main(("recipe",))
