"""The sections on CIFAR-10: the search, Tables 1 and 2, what did not work, what was not run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import recipe, table1, table2
from experiments.candidates import EVERYTHING, RECIPES
from experiments.jobs import Setting
from experiments.tables import table

FIGURE = "cifar_vgg16.png"
Cells = dict[tuple[str, float], dict[int, float]]


def records_in(folder: Path) -> dict[str, Any]:
    """All records of a folder by name; other files of JSON are left out."""
    found = {p.stem: json.loads(p.read_text("utf-8")) for p in sorted(folder.glob("*.json"))}
    return {name: each for name, each in found.items() if "results" in each}


def sections(found: Mapping[str, Any]) -> list[str]:
    """What the records of the fleet say; nothing where there are none."""
    parts = [_table1(found), _search(found), _table2(found)]
    return [part for part in parts if part]


def runs_of(
    found: Mapping[str, Any], wanted: str, network: str | None = None
) -> list[dict[str, Any]]:
    """All runs of a table, each with its seed; of several schedules the one with most runs."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for each in found.values():
        results = each["results"]
        if not isinstance(results, dict) or results.get("table of runs") != wanted:
            continue
        if network not in (None, results["network"]):
            continue
        for run in results["runs"]:
            schedule = run["name"].split(" s")[0]
            key = schedule.partition(" ")[2]
            runs.setdefault(key, []).append(
                run | {"seed": each["seed"], "network": results["network"], "setting": key}
            )
    return max(runs.values(), key=len) if runs else []


def cells_of(runs: Iterable[Mapping[str, Any]]) -> Cells:
    """Accuracy by method and level, for each seed, after finetuning."""
    cells: Cells = {}
    for run in runs:
        if run["parent"] is not None:
            cells.setdefault((run["label"], run["level"]), {})[run["seed"]] = run["accuracy"]
    return cells


def shown(values: Mapping[int, float] | None) -> str:
    """Mean ± standard deviation over seeds, and how many there are if more than one."""
    if not values:
        return ""
    mean = statistics.mean(values.values())
    if len(values) == 1:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {statistics.stdev(values.values()):.2f} ({len(values)})"


def _setup(found: Mapping[str, Any], wanted: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Epochs, seeds, machine: in one paragraph."""
    mine = [
        (name, each)
        for name, each in found.items()
        if isinstance(each["results"], dict) and each["results"].get("table of runs") == wanted
    ]
    trunks = [run["epochs"] for run in runs if run["parent"] is None]
    leaves = [run["epochs"] for run in runs if run["parent"] is not None]
    first = mine[0][1]
    options = first["parameters"].get("options", {})
    machine = first["machine"]
    return (
        f"{max(trunks, default=0)} epochs, then {max(leaves, default=0)} of finetuning, for every "
        f"row; batch {options.get('batch')}, SGD with Nesterov momentum, schedule "
        f"“{options.get('schedule')}”, label smoothing {options.get('smoothing')}"
        f"{', bfloat16' if machine.get('gpu') else ''}; seeds "
        f"{sorted({run['seed'] for run in runs})}. “± … (n)”: standard deviation over n "
        "seeds; without it, one seed. Source: "
        f"{', '.join(f'`records/{n}.json`' for n, _ in mine)} (commit "
        f"{(first['commit'] or 'unknown')[:10]}, {machine.get('gpu') or machine['processor']})."
    )


def choice_of(found: Mapping[str, Any]) -> recipe.Choice:
    """What a session chose, or the default."""
    for each in found.values():
        about = each.get("parameters") or {}
        if "choice" in about:
            return recipe.Choice(**about["choice"])
    return recipe.Choice()


def _level(level: float) -> str:
    return f"{100 * level:g} %"


def _number(level: str) -> float:
    return float(level.split()[0])


def _table1(found: Mapping[str, Any]) -> str:
    runs = runs_of(found, "table1")
    if not runs:
        return "## Table 1: VGG-16 on CIFAR-10\n\n**Not run**: there is no record of any row."
    cells, choice = cells_of(runs), choice_of(found)
    levels = sorted({level for _, level in cells if level})
    dense = cells.get(("dense", 0.0))
    rows: list[list[str]] = []
    labels = list(dict.fromkeys(label for label, _ in cells if label != "dense"))
    labels.sort(key=lambda label: list(EVERYTHING).index(label))
    rows.append(["dense", shown(dense), *[""] * len(levels)])
    rows += _paper("dense", levels)
    for label in labels:
        bold = f"**{label}** (chosen)" if label == choice.recipe else label
        rows.append([bold, "", *(shown(cells.get((label, level))) for level in levels)])
        rows += _paper(label, levels)
    speed = next(
        (e["parameters"]["seconds per epoch"] for n, e in found.items()
         if n.startswith("table1") and "seconds per epoch" in e["parameters"]),
        {},
    )  # fmt: skip
    parts = [
        "## Table 1: VGG-16 on CIFAR-10, accuracy against zeros",
        _setup(found, "table1", runs),
        table(["test accuracy, %", "0 %", *map(_level, levels)], rows),
        _against(cells, choice, levels),
        f"![Accuracy against zeros](figures/{FIGURE})",
        "What differs from the paper: the length of the schedule (the paper: 200 epochs and 200 of "
        "finetuning, rate 0.1 and 0.01, a tenth after epochs 80, 120 and 160; here one ramp up and "
        "down, then a restart that falls with the square of what is left), the number of "
        "projections that follows from it (about three an epoch, from a fifth of the epochs on, as "
        "in the paper), batch, Nesterov momentum and label smoothing as said above, and that every "
        "row, also the dense one, has the same total number of epochs. The paper's random row "
        "retrains, ours finetunes the dense network at the same budget.",
        _collapsed(runs),
        _missing(runs, found, choice),
    ]
    if speed:
        figures = "; ".join(
            f"{network}: {own['alone']:.2f} s alone, {own['side by side']:.2f} s side by side"
            for network, own in speed.items()
        )
        parts.append(f"Seconds an epoch, measured before the session: {figures}.")
    return "\n\n".join(part for part in parts if part)


def _paper(label: str, levels: Sequence[float]) -> list[list[str]]:
    """The paper's row of the same method, to stand below ours."""
    for theirs, figures in table1.PAPER.items():
        if label == theirs or label.startswith((f"{theirs} 0.", f"{theirs} 1e-")):
            cells = [f"{figures[lv]:.2f}" if lv in figures else "" for lv in (0.0, *levels)]
            return [["– in the paper", *cells]]
    return []


def _against(cells: Cells, choice: recipe.Choice, levels: Sequence[float]) -> str:
    """The chosen recipe less the best magnitude method at the same level, seed by seed."""
    rows = []
    for level in levels:
        ours = cells.get((choice.recipe, level), {})
        means = {
            name: statistics.mean(cells[name, level][seed] for seed in ours)
            for name in recipe.COMPARED
            if ours and ours.keys() <= cells.get((name, level), {}).keys()
        }
        if not means:
            continue
        best = max(means, key=lambda name: means[name])
        less = {seed: ours[seed] - cells[best, level][seed] for seed in ours}
        rows.append([_level(level), best, f"{means[best]:.2f}", shown(ours), shown(less)])
    if not rows:
        return ""
    header = ["zeros", "best magnitude method with these seeds", "its accuracy"]
    return (
        f"The chosen recipe ({choice.recipe}) against the best of one-shot and gradual magnitude "
        "pruning, with and without a floor, that ran with the same seeds:\n\n"
        + table([*header, choice.recipe, "difference"], rows)
    )


def _collapsed(runs: Iterable[Mapping[str, Any]]) -> str:
    """Networks that the cut disconnected."""
    found: dict[str, set[str]] = {}
    for run in runs:
        if run["parent"] is not None and run["collapsed"]:
            found.setdefault(run["label"], set()).add(_level(run["level"]))
    if not found:
        return ""
    listed = "; ".join(
        f"{label}: {', '.join(sorted(at, key=_number))}" for label, at in found.items()
    )
    return f"At least one layer was left without a nonzero entry: {listed}."


def _missing(
    runs: Sequence[Mapping[str, Any]], found: Mapping[str, Any], choice: recipe.Choice
) -> str:
    """Which rows and levels of Table 1 have no record."""
    network = runs[0]["network"]
    setting = Setting("table1", network, 1, 1, 128)
    seeds = sorted({run["seed"] for run in runs})
    have = {(run["label"], run["level"], run["seed"]) for run in runs if run["parent"] is not None}
    lost: dict[tuple[str, int], list[str]] = {}
    for job in table1.jobs(setting, list(dict.fromkeys([0, 1, 2, *seeds])), choice):
        wanted = (job.label, job.level, job.seed)
        if job.parent is not None and wanted not in have:
            lost.setdefault((job.label, job.seed), []).append(_level(job.level))
    if not lost:
        return "All rows were run."
    listed = "; ".join(
        f"{label}, seed {seed} ({', '.join(sorted(levels, key=_number))})"
        for (label, seed), levels in lost.items()
    )
    return f"**Not run**, for want of GPU time: {listed}."


def _search(found: Mapping[str, Any]) -> str:
    runs = runs_of(found, "recipe")
    if not runs:
        return ""
    choice = choice_of(found)
    leaves = [run for run in runs if run["parent"] is not None and run["level"]]
    levels = sorted({run["level"] for run in leaves})
    rates = sorted({run["rate"] for run in leaves})
    means: list[tuple[float, list[str]]] = []
    for rate in rates:
        cells = cells_of(run for run in leaves if run["rate"] == rate)
        for label in dict.fromkeys(label for label, _ in cells):
            own = [cells.get((label, level)) for level in levels]
            full = [statistics.mean(o.values()) for o in own if o]
            mean = statistics.mean(full) if len(full) == len(levels) else float("-inf")
            cell = f"{mean:.2f}" if full and len(full) == len(levels) else ""
            means.append((mean, [label, f"{rate:.3g}", *map(shown, own), cell]))
    means.sort(key=lambda pair: -pair[0])
    best = max(
        (mean for mean, row in means if row[0] in recipe.all_rivals()), default=float("-inf")
    )
    worse = [row[0] for mean, row in means if row[0] in RECIPES and float("-inf") < mean < best]
    failed = ", ".join(dict.fromkeys(worse))
    return "\n\n".join(
        part
        for part in (
            "## The recipe, chosen on held-out images",
            _setup(found, "recipe", runs),
            table(
                ["accuracy on 5 000 held-out images, %", "rate", *map(_level, levels), "mean"],
                [row for _, row in means],
            ),
            f"Chosen: {choice.recipe}; the paper's "
            f"setting with the better of its targets: {choice.paper}.",
            f"What did not work, that is, stayed below the best rival here: {failed}."
            if failed
            else "",
        )
        if part
    )


def _table2(found: Mapping[str, Any]) -> str:
    rows: list[list[str]] = []
    everything: list[dict[str, Any]] = []
    lost: list[str] = []
    choice = choice_of(found)
    for network in table2.NETWORKS:
        runs = runs_of(found, "table2", network)
        everything += runs
        cells = cells_of(runs)
        dense = cells.get(("dense", 0.0), {})
        rows.append([f"{network}: dense", "", shown(dense), "", "", ""])
        setting = Setting("table2", network, 1, 1, 128)
        jobs = [
            *table2.jobs(setting, network, [0]),
            *table2.chosen_jobs(setting, network, [0], choice),
        ]
        for label, level in dict.fromkeys((j.label, j.level) for j in jobs if j.parent and j.level):
            values = cells.get((label, level))
            if not values:
                lost.append(f"{network}, {label} at {_level(level)}")
                continue
            both = {seed: dense[seed] - v for seed, v in values.items() if seed in dense}
            plain = label.split(" 1e-")[0].removesuffix(" 0.8")
            theirs = table2.PAPER.get((network, plain, level))
            paper = [f"{theirs[0]:.2f}", f"{theirs[1]:.2f}"] if theirs else ["", ""]
            name = f"**{label}** (chosen)" if label == choice.recipe else label
            rows.append([f"{network}: {name}", _level(level), shown(values), shown(both), *paper])
    if not everything:
        return "## Table 2: ResNet-56 and ResNet-110\n\n**Not run**: no record of any row."
    header = ["", "zeros", "accuracy, %", "drop", "paper: accuracy", "drop"]
    parts = [
        "## Table 2: ResNet-56 and ResNet-110 on CIFAR-10",
        _setup(found, "table2", everything),
        table(header, rows),
        "Drops are against the own dense network with the same seed and the same total number of "
        "epochs. DeepHoyer's strength was not tuned for these networks.",
    ]
    if lost:
        parts.append(f"**Not run**, for want of GPU time: {'; '.join(lost)}.")
    return "\n\n".join(parts)
