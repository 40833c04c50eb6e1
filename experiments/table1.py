"""Table 1: VGG-16 on CIFAR-10 at 80 to 99.5 % zeros, all methods at equal total epochs.

    python -m experiments.table1 --data DIR --seeds 0 1 2

The schedule is short by default (12 epochs, then 4 of finetuning); ``--schedule paper --epochs 200
--finetune 200 --smoothing 0 --batch 128`` is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.candidates import dense, jobs_of
from experiments.jobs import Job, Setting
from experiments.recipe import Choice

LEVELS = (0.80, 0.85, 0.90, 0.95, 0.97, 0.98, 0.99, 0.995)
FIRST_LEVELS = (0.95, 0.98, 0.99, 0.995)  # where methods differ most
OTHER_LEVELS = tuple(level for level in LEVELS if level not in FIRST_LEVELS)
SEED_LEVELS = (0.90, 0.95, 0.98, 0.99, 0.995)  # with further seeds
GRADUAL_LEVELS = (0.95, 0.98, 0.99, 0.995)
FLOOR_LEVELS = (0.98, 0.99, 0.995)  # below them a floor keeps nothing that would have gone
SINGLE_LEVELS = (0.80, 0.90, 0.95, 0.98)
INITIAL_LEVELS = (0.98, 0.95, 0.90)
PAPER = {  # percent, from Table 1 of the paper
    "dense": {0.0: 92.82},
    "random": {0.80: 83.7, 0.85: 82.75, 0.90: 81.56, 0.95: 78.18, 0.97: 76.3},
    "magnitude": {0.80: 92.78, 0.85: 92.74, 0.90: 92.5, 0.95: 91.41, 0.97: 10.0},
    "DeepHoyer": {0.80: 91.23, 0.85: 91.2, 0.90: 91.42, 0.95: 91.47, 0.97: 91.54},
    "induced GSP, paper": {0.80: 92.37, 0.85: 92.28, 0.90: 92.39, 0.95: 92.32, 0.97: 91.92},
}


def jobs(
    setting: Setting,
    seeds: Sequence[int],
    choice: Choice | None,
    *,
    recipes: Sequence[str] = (),
    rivals: Sequence[str] = (),
) -> list[Job]:
    """All rows, the most valuable first; without a choice those that do not depend on it.

    ``recipes`` and ``rivals`` are further rows, after those of the chosen recipe of every seed.
    The rivals go first: without them nobody knows what the recipes are worth.
    """
    setting = replace(setting, table="table1")
    rows: list[tuple[tuple[int, ...], str | None, Sequence[float], int]] = []
    for turn, seed in enumerate(seeds):
        rows += [((*place, turn), *row, seed) for place, *row in _rows(choice, turn)]
        for number, further in enumerate((*rivals, *recipes)):
            own: Sequence[float] = SEED_LEVELS if turn or further in rivals else LEVELS
            rows.append(((2 * len(seeds) - 1, 9, number, turn), further, own, seed))
    found: list[Job] = []
    for priority, label, levels, seed in rows:
        if label == "dense":
            found += dense(setting, seed, priority)
        elif label is not None:
            found += jobs_of(setting, label, levels, seed, priority=priority)
    unique: dict[str, Job] = {}
    for job in sorted(found, key=lambda job: job.priority):
        unique.setdefault(job.name, job)
    return list(unique.values())


def _rows(choice: Choice | None, turn: int) -> list[tuple[tuple[int, int], str | None, Any]]:
    """Priority, label and levels of the rows of the first, second, … seed."""
    recipe, paper, deephoyer = (
        (choice.recipe, choice.paper, choice.deephoyer) if choice else (None, None, None)
    )
    if turn:
        own = 1 + 2 * turn  # tiers 3 and 5: whole seeds
        return [
            ((own, 0), "dense", ()),
            ((own, 1), recipe, SEED_LEVELS),
            ((own, 2), "magnitude", SEED_LEVELS),
            ((own, 3), "gradual magnitude", (0.95, 0.98, 0.995)),
            ((own, 4), paper, SEED_LEVELS),
            ((9, 1), "gradual magnitude", (0.99,)),
            ((9, 2), recipe, LEVELS),
            ((9, 3), "magnitude", LEVELS),
            ((9, 4), paper, LEVELS),
        ]
    rows: list[tuple[tuple[int, int], str | None, Any]] = [
        ((1, 0), "dense", ()),
        ((1, 1), "magnitude", FIRST_LEVELS),
        ((1, 2), recipe, FIRST_LEVELS),
        ((1, 3), "gradual magnitude", GRADUAL_LEVELS),
        ((1, 4), paper, FIRST_LEVELS),
        ((1, 5), "magnitude", OTHER_LEVELS),
        ((1, 6), recipe, OTHER_LEVELS),
        ((1, 7), paper, OTHER_LEVELS),
        ((2, 0), "magnitude, floor", FLOOR_LEVELS),
        ((2, 1), "random", LEVELS),
        ((2, 2), deephoyer, LEVELS),
        ((2, 3), "gradual magnitude, floor", FLOOR_LEVELS),
        ((6, 0), "single-shot GSP, per layer", SINGLE_LEVELS),
        ((6, 0), "magnitude, per layer", SINGLE_LEVELS),
        ((6, 1), "single-shot GSP, mask only", FIRST_LEVELS),
        ((6, 2), "single-shot GSP", FIRST_LEVELS),
    ]
    for place, level in enumerate(INITIAL_LEVELS):
        rows += [((7, place), label, (level,)) for label in ("SNIP", "SynFlow", "GraSP")]
    return [*rows, ((9, 0), "single-shot GSP, per layer, mask only", SINGLE_LEVELS)]


if __name__ == "__main__":
    from experiments.gpu_session import main

    main(("table1",))
