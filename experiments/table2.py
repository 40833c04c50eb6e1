"""Table 2: ResNet-56 and ResNet-110 on CIFAR-10, accuracy lost against the own dense network.

python -m experiments.table2 --data DIR --seeds 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.candidates import dense, jobs_of
from experiments.jobs import Job, Setting
from experiments.recipe import Choice

NETWORKS = ("resnet56", "resnet110")
# Fractions of zeros, from Table 2 of the paper: induced, single-shot, DeepHoyer.
LEVELS = {
    "resnet56": {"induced": (0.8833,), "single": (0.8578,), "deephoyer": (0.8464,)},
    "resnet110": {"induced": (0.9518,), "single": (0.8590, 0.9072), "deephoyer": (0.8394,)},
}
PAPER = {  # network, method, zeros: accuracy and drop in percent
    ("resnet56", "induced GSP, paper", 0.8833): (92.04, 1.09),
    ("resnet56", "DeepHoyer", 0.8464): (92.71, 0.42),
    ("resnet56", "single-shot GSP, per layer", 0.8578): (92.71, 0.42),
    ("resnet110", "induced GSP, paper", 0.9518): (92.67, 0.95),
    ("resnet110", "DeepHoyer", 0.8394): (92.76, 1.24),
    ("resnet110", "single-shot GSP, per layer", 0.8590): (92.86, 0.76),
    ("resnet110", "single-shot GSP, per layer", 0.9072): (92.45, 1.17),
}
# Layers of a ResNet have a hundredth of VGG-16's entries, and so has the gradient of Hoyer-Square.
DEEPHOYER = "DeepHoyer 1e-6"


def jobs(setting: Setting, network: str, seeds: Sequence[int]) -> list[Job]:
    """The rows of the paper, and magnitude pruning at the same levels."""
    setting = replace(setting, table="table2", network=network)
    levels, found = LEVELS[network], []
    both = (*levels["single"], *levels["induced"])
    for turn, seed in enumerate(seeds):
        most = (2 if turn == 0 else 2 + 2 * turn,)
        found += dense(setting, seed, (*most, 0))
        rows = [
            ("single-shot GSP, per layer", levels["single"]),
            ("single-shot GSP, per layer, mask only", levels["single"]),
            ("induced GSP, paper 0.8", levels["induced"]),
            (DEEPHOYER, levels["deephoyer"]),
            ("magnitude", both),
        ]
        for place, (label, chosen) in enumerate(rows):
            found += jobs_of(setting, label, chosen, seed, priority=(*most, 1 + place))
    return list({job.name: job for job in found}.values())


def chosen_jobs(setting: Setting, network: str, seeds: Sequence[int], choice: Choice) -> list[Job]:
    """The chosen recipe at the levels of the other rows."""
    setting = replace(setting, table="table2", network=network)
    levels = (*LEVELS[network]["single"], *LEVELS[network]["induced"])
    found: list[Job] = []
    for turn, seed in enumerate(seeds):
        most = (2 if turn == 0 else 2 + 2 * turn,)
        found += jobs_of(setting, choice.recipe, levels, seed, priority=(*most, 9))
    return found


if __name__ == "__main__":
    from experiments.gpu_session import main

    main(("table2",))
