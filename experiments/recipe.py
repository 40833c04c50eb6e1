"""Which recipe of induced GSP is best, chosen on 5 000 images held out of the training set.

    python -m experiments.recipe --data DIR --epochs 12 --finetune 4 --seeds 0

The test set is not looked at. Each candidate is compared with one-shot and gradual magnitude
pruning at the same total number of epochs. Where there is time left at the end, other recipes and
finetuning rates are tried, to see what they would have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.candidates import EVERYTHING, PAPER, RECIPES, RIVALS, jobs_of
from experiments.jobs import Job, Setting

LEVELS = (0.95, 0.99)
# What the choice waits for: rivals to compare with, then recipes, then the settings of other rows.
FIRST = (
    "magnitude",
    "gradual magnitude",
    "GSP 0.8",
    "GSP 0.8, gradual",
    "GSP 0.7, gradual",
    "GSP 0.7",
    "finishing GSP, held, mask only",
    "GSP 0.8, one threshold",
    "GSP 0.8, cut at 70 %",
    "GSP 0.8, one threshold, cut at 50 %",
    "gradual magnitude, to 50 %",
    "GSP 0.9",
    *PAPER,
    "DeepHoyer 1e-7",
    "DeepHoyer 1e-6",
)
DEEPHOYER = ("DeepHoyer 1e-7", "DeepHoyer 1e-6")
COMPARED = (
    "magnitude",
    "magnitude, floor",
    "gradual magnitude",
    "gradual magnitude, floor",
    "gradual magnitude, to 50 %",
)
# After the tables, to see what else works: other recipes, other rates of finetuning.
RATES = (0.02, 0.1)  # at a batch of 128; besides the setting's own
RATED = ("magnitude", "GSP 0.9")
LAST = 8  # the priority of these


@dataclass(frozen=True)
class Choice:
    """What the held-out images decide."""

    recipe: str = next(iter(RECIPES))
    paper: str = "induced GSP, paper 0.9"
    deephoyer: str = DEEPHOYER[0]
    ranking: tuple[tuple[str, float], ...] = ()


def jobs(
    setting: Setting,
    seeds: Sequence[int] = (0,),
    levels: Sequence[float] = LEVELS,
    *,
    labels: Sequence[str] = (),
) -> list[Job]:
    """All candidates; those whose priority begins with 0 are what the choice waits for.

    With ``labels`` these alone, in this order, and the choice waits for every one.
    """
    setting = replace(setting, table="recipe", split="search")
    first = labels or FIRST
    others = () if labels else (*COMPARED, *RECIPES)
    found: list[Job] = []
    for turn, seed in enumerate(seeds):
        for place, label in enumerate(dict.fromkeys([*first, *others])):
            most = 0 if label in first else LAST
            found += jobs_of(setting, label, levels, seed, priority=(most, turn, 1 + place))
        for rate in () if labels else RATES:
            for label in RATED:
                changed = replace(setting, finetune_rate=rate * setting.batch / 128)
                found += jobs_of(changed, label, levels, seed, priority=(LAST, turn, 99))
    unique: dict[str, Job] = {}
    for job in sorted(found, key=lambda job: job.priority):
        unique.setdefault(job.name, job)
    return list(unique.values())


def choose(
    lines: Iterable[Mapping[str, Any]],
    setting: Setting,
    levels: Sequence[float] = LEVELS,
) -> Choice:
    """The best of those that ran at every level, going by the mean over levels and seeds.

    Runs of another schedule, which a journal or the records may also have, say nothing here.
    """
    prefix = replace(setting, split="search").prefix
    cells: dict[tuple[str, float], list[float]] = {}
    for line in lines:
        job = line["job"]
        if not _is_leaf(line) or not line["name"].startswith(prefix):
            continue
        if job["rate"] == EVERYTHING[job["label"]].rate * setting.finetune_rate:
            cells.setdefault((job["label"], job["level"]), []).append(line["accuracy"])
    default = Choice()
    means = _complete(cells, [*RECIPES, *PAPER, *DEEPHOYER, *COMPARED], levels)
    return Choice(
        recipe=_best(means, RECIPES, default.recipe),
        paper=_best(means, PAPER, default.paper),
        deephoyer=_best(means, DEEPHOYER, default.deephoyer),
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
