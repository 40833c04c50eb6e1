"""Table 1: VGG-16 on CIFAR-10 at 80 to 99.5 % zeros, all methods at equal total epochs.

    python -m experiments.table1 --data DIR --seeds 0 1 2

The schedule is short by default (16 epochs, then 6 of finetuning); ``--schedule paper --epochs 200
--finetune 200`` is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.candidates import SINGLE_SHOT, dense, jobs_of
from experiments.jobs import Job, Setting
from experiments.recipe import Choice

LEVELS = (0.80, 0.85, 0.90, 0.95, 0.97, 0.98, 0.99, 0.995)
GRADUAL_LEVELS = (0.95, 0.98, 0.99, 0.995)
INITIAL_LEVELS = (0.90, 0.95, 0.98)
PAPER = {  # percent, from Table 1 of the paper
    "dense": {0.0: 92.82},
    "random": {0.80: 83.7, 0.85: 82.75, 0.90: 81.56, 0.95: 78.18, 0.97: 76.3},
    "magnitude": {0.80: 92.78, 0.85: 92.74, 0.90: 92.5, 0.95: 91.41, 0.97: 10.0},
    "DeepHoyer": {0.80: 91.23, 0.85: 91.2, 0.90: 91.42, 0.95: 91.47, 0.97: 91.54},
    "induced GSP, paper": {0.80: 92.37, 0.85: 92.28, 0.90: 92.39, 0.95: 92.32, 0.97: 91.92},
}


def jobs(setting: Setting, seeds: Sequence[int], choice: Choice | None = None) -> list[Job]:
    """All rows: everything once, then the rows that get further seeds."""
    choice = choice or Choice(rate=setting.finetune_rate)
    setting = replace(setting, table="table1", finetune_rate=choice.rate)
    found: list[Job] = []
    for turn, seed in enumerate(seeds):
        most = (1 if turn == 0 else 2 + turn,)  # the second seed comes after Table 2
        found += dense(setting, seed, (*most, 0))
        rows: list[tuple[str, Sequence[float]]] = [
            ("magnitude", LEVELS),
            (choice.recipe, LEVELS),
            ("gradual magnitude", GRADUAL_LEVELS),
            (choice.paper, LEVELS),
        ]
        if turn == 0:
            rows += [
                ("magnitude, floor", LEVELS),
                ("gradual magnitude, floor", GRADUAL_LEVELS),
                ("single-shot GSP, per layer", LEVELS),
                ("single-shot GSP, per layer, mask only", LEVELS),
                (choice.deephoyer, LEVELS),
                ("magnitude, per layer", LEVELS),
                ("random", LEVELS),
                *((label, LEVELS) for label in list(SINGLE_SHOT)[2:]),
                *((label, INITIAL_LEVELS) for label in ("SNIP", "SynFlow", "GraSP")),
            ]
        for place, (label, levels) in enumerate(rows):
            found += jobs_of(setting, label, levels, seed, priority=(*most, 1 + place))
    return list({job.name: job for job in found}.values())


if __name__ == "__main__":
    from experiments.gpu_session import main

    main(("table1",))
