"""The section on Table 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments import table2
from experiments.jobs import Setting
from experiments.report_cifar import cells_of, choice_of, epochs_of, runs_of, setup, shown
from experiments.report_cifar_rest import level_name, missing_of_table2
from experiments.tables import table

# What the paper's accuracies and drops add up to, in percent.
DENSE = {
    network: next(sum(both) for (own, *_), both in table2.PAPER.items() if own == network)
    for network in table2.NETWORKS
}


def section(found: Mapping[str, Any]) -> str:
    """Accuracy lost against the own dense network, the paper's beside ours."""
    rows: list[list[str]] = []
    everything: list[dict[str, Any]] = []
    lost: list[tuple[str, str, float]] = []
    choice = choice_of(found)
    for network in table2.NETWORKS:
        runs = runs_of(found, "table2", network)
        everything += runs
        cells = cells_of(runs)
        dense = cells.get(("dense", 0.0), {})
        own = DENSE[network]
        rows.append([f"{network}: dense", "", shown(dense), "", f"{own:.2f}", ""])
        setting = Setting("table2", network, 1, 1, 128)
        jobs = [
            *table2.jobs(setting, network, [0]),
            *table2.chosen_jobs(setting, network, [0], choice),
        ]
        for label, level in dict.fromkeys((j.label, j.level) for j in jobs if j.parent and j.level):
            values = cells.get((label, level))
            if not values:
                lost.append((network, label, level))
                continue
            both = {seed: dense[seed] - v for seed, v in values.items() if seed in dense}
            plain = label.split(" 1e-")[0].removesuffix(" 0.8")
            theirs = table2.PAPER.get((network, plain, level))
            paper = [f"{theirs[0]:.2f}", f"{theirs[1]:.2f}"] if theirs else ["", ""]
            name = f"**{label}** (chosen)" if label == choice.recipe else label
            rows.append(
                [f"{network}: {name}", level_name(level), shown(values), shown(both), *paper]
            )
    if not everything:
        return "## Table 2: ResNet-56 and ResNet-110\n\n**Not run**: no record of any row."
    header = ["", "zeros", "accuracy, %", "drop", "paper: accuracy", "drop"]
    trunk, leaf = epochs_of(everything)
    parts = [
        "## Table 2: ResNet-56 and ResNet-110 on CIFAR-10",
        setup(found, "table2", everything),
        table(header, rows),
        "Drops are against the own dense network with the same seed and the same total number of "
        f"epochs ({trunk + leaf}; the paper has 400), the paper's against its own. “Single-shot "
        "GSP, per layer” keeps the projected values, “mask only” the original ones. DeepHoyer's "
        "strength was not tuned for these networks.",
        missing_of_table2(found, lost),
    ]
    return "\n\n".join(part for part in parts if part)
