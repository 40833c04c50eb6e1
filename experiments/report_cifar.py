"""The sections on VGG-16 and CIFAR-10: Table 1 and the search."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments import recipe, table1
from experiments.candidates import EVERYTHING, RECIPES
from experiments.networks import NETWORKS
from experiments.report_cifar_rest import (
    level_name,
    missing_of_search,
    missing_of_table1,
    number,
    options_of,
)
from experiments.tables import table

FIGURE = "cifar_vgg16.png"
CHANCE = 10.0  # percent, of ten classes
Cells = dict[tuple[str, float], dict[int, float]]


def records_in(folder: Path) -> dict[str, Any]:
    """All records of a folder by name; other files of JSON are left out."""
    found = {p.stem: json.loads(p.read_text("utf-8")) for p in sorted(folder.glob("*.json"))}
    return {name: each for name, each in found.items() if "results" in each}


def sections(found: Mapping[str, Any]) -> list[str]:
    """What the records of the fleet say; nothing where there are none."""
    parts = [_table1(found), _search(found)]
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
            key = re.split(r" s\d+ ", run["name"])[0].partition(" ")[2]
            runs.setdefault(key, []).append(
                run
                | {
                    "seed": each["seed"],
                    "network": results["network"],
                    "layers": results["layers"],
                    "setting": key,
                }
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


def commit_of(each: Mapping[str, Any]) -> str:
    """The commit of a record, and whether the files were as in it."""
    changed = " with local changes" if each.get("dirty") else ""
    return f"commit {(each['commit'] or 'unknown')[:10]}{changed}"


def epochs_of(runs: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How long trunks and leaves train."""
    listed = list(runs)
    trunks = [run["epochs"] for run in listed if run["parent"] is None]
    leaves = [run["epochs"] for run in listed if run["parent"] is not None]
    return max(trunks, default=0), max(leaves, default=0)


def setup(found: Mapping[str, Any], wanted: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Epochs, seeds, machine: in one paragraph."""
    mine = [
        (name, each)
        for name, each in found.items()
        if isinstance(each["results"], dict) and each["results"].get("table of runs") == wanted
    ]
    trunks, leaves = epochs_of(runs)
    first = mine[0][1]
    options = options_of(found, wanted)
    machine = first["machine"]
    sessions = [s for _, each in mine for s in (*each["results"].get("sessions", []), each)]
    commits = dict.fromkeys(commit_of(session) for session in sessions)
    numbers = sorted({run["seed"] for run in runs})
    seeds = (
        f"**one seed** ({numbers[0]}), so no spread is known"
        if len(numbers) == 1
        else f"seeds {', '.join(map(str, numbers))}; “± … (n)” is the standard deviation over n "
        "seeds, a figure without it has one"
    )
    climbing = (
        " Of so few epochs the last three include one or two at a high rate, and their mean is "
        "below where the network ends."
        if leaves < 10
        else ""
    )
    return (
        f"{trunks} epochs, then {leaves} of finetuning, for every row; {seeds}. Batch "
        f"{options.get('batch')}, SGD with Nesterov momentum, schedule "
        f"“{options.get('schedule')}”, label smoothing {options.get('smoothing')}"
        f"{', bfloat16' if machine.get('gpu') else ''}."
        f"{climbing} Source: {', '.join(f'`records/{n}.json`' for n, _ in mine)} "
        f"({'; '.join(commits)}, {machine.get('gpu') or machine['processor']})."
    )


def choice_of(found: Mapping[str, Any]) -> recipe.Choice:
    """What a session chose, or the default."""
    for each in found.values():
        about = each.get("parameters") or {}
        if "choice" in about:
            return recipe.Choice(**about["choice"])
    return recipe.Choice()


def _table1(found: Mapping[str, Any]) -> str:
    runs = runs_of(found, "table1")
    if not runs:
        return "## Table 1: VGG-16 on CIFAR-10\n\n**Not run**: there is no record of any row."
    cells, choice, mine = cells_of(runs), choice_of(found), runs[0]["network"]
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
        setup(found, "table1", runs),
        table(["test accuracy, %", "0 %", *map(level_name, levels)], rows),
        _against(cells, choice, levels),
        f"![Accuracy against zeros](figures/{FIGURE})",
        _differs(runs, dense),
        _collapsed(runs),
        missing_of_table1(found, runs, choice),
    ]
    if speed:
        figures = "; ".join(
            f"{network}: {own['alone']:.2f} s alone"
            + (f", {own['side by side']:.2f} s a network side by side" if network == mine else "")
            for network, own in speed.items()
        )
        parts.append(f"Seconds an epoch, measured before the session: {figures}.")
    return "\n\n".join(part for part in parts if part)


def _differs(runs: Sequence[Mapping[str, Any]], dense: Mapping[int, float] | None) -> str:
    """What is not as in the paper."""
    trunk, leaf = epochs_of(runs)
    reached = (
        f" The dense network reaches {statistics.mean(dense.values()):.2f} %, not the paper's "
        f"{table1.PAPER['dense'][0.0]:.2f} %: compare our rows with each other, the paper's rows "
        "are there for scale."
        if dense and trunk + leaf < 400
        else ""
    )
    return (
        f"What differs from the paper: {trunk + leaf} epochs in total instead of 400.{reached} "
        "The paper trains 200 epochs and finetunes for 200, rate 0.1 and 0.01, a tenth after "
        "epochs 80, 120 and 160; the schedule “linear” is one ramp up and down, then a restart "
        "that falls with the square of what is left. The number of projections follows from the "
        "epochs (about three an epoch, from a fifth of them on, as in the paper). Batch, Nesterov "
        "momentum and label smoothing are as said above, and every row, also the dense one, has "
        "the same total number of epochs. The paper's random row retrains, ours finetunes the "
        "dense network at the same budget."
    )


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
        rivals = {name: cells.get((name, level), {}) for name in recipe.COMPARED}
        both = {name: ours.keys() & theirs.keys() for name, theirs in rivals.items()}
        means = {
            name: statistics.mean(rivals[name][seed] for seed in seeds)
            for name, seeds in both.items()
            if seeds
        }
        if not means:
            continue
        best = max(means, key=lambda name: means[name])
        mine = {seed: ours[seed] for seed in sorted(both[best])}
        less = {seed: ours[seed] - rivals[best][seed] for seed in mine}
        rows.append([level_name(level), best, f"{means[best]:.2f}", shown(mine), shown(less)])
    if not rows:
        return ""
    header = ["zeros", "best magnitude method", "its accuracy"]
    return (
        f"The chosen recipe ({choice.recipe}) against the best of one-shot and gradual magnitude "
        "pruning, with and without a floor, over the seeds that both ran with:\n\n"
        + table([*header, choice.recipe, "difference"], rows)
    )


def _collapsed(runs: Iterable[Mapping[str, Any]]) -> str:
    """Networks that the cut disconnected, or left so little that they only guess."""
    found: dict[str, set[str]] = {}
    guessing: list[str] = []
    for run in runs:
        if run["parent"] is None:
            continue
        if run["collapsed"]:
            found.setdefault(run["label"], set()).add(level_name(run["level"]))
        elif run["accuracy"] < 1.2 * CHANCE:
            left = min(_left(run))
            guessing.append(
                f"{run['label']} at {level_name(run['level'])} (one layer has {left} entries left)"
            )
    listed = "; ".join(
        f"{label}: {', '.join(sorted(at, key=number))}" for label, at in found.items()
    )
    said = [f"At least one layer was left without a nonzero entry: {listed}."] if found else []
    said += [f"No better than guessing: {'; '.join(sorted(guessing))}."] if guessing else []
    return " ".join(said)


def _left(run: Mapping[str, Any]) -> list[int]:
    """How many nonzero entries each layer has."""
    with torch.device("meta"):
        sizes = {n: p.numel() for n, p in NETWORKS[run["network"]]().named_parameters()}
    return [sizes[n] - z for n, z in zip(run["layers"], run["zeros"], strict=True)]


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
    return "\n\n".join(
        part
        for part in (
            "## The recipe, chosen on held-out images",
            setup(found, "recipe", runs),
            table(
                ["accuracy on 5 000 held-out images, %", "rate", *map(level_name, levels), "mean"],
                [row for _, row in means],
            ),
            _verdict(means, choice),
            missing_of_search(found, runs, choice),
        )
        if part
    )


def _verdict(means: Sequence[tuple[float, list[str]]], choice: recipe.Choice) -> str:
    """What was chosen, and what that is worth against the rivals."""
    rivals = [(mean, row[0]) for mean, row in means if row[0] in recipe.all_rivals()]
    best, rival = max(rivals, default=(float("-inf"), ""))
    tried = [(mean, row[0]) for mean, row in means if row[0] in RECIPES and mean > float("-inf")]
    worse = list(dict.fromkeys(label for mean, label in tried if mean < best))
    said = f"Chosen: {choice.recipe}."
    if choice.recipe in worse:
        own = next(mean for mean, label in tried if label == choice.recipe)
        late = [label for mean, label in tried if mean > own]
        said += (
            " It was the best recipe of GSP when the time of the search was over; "
            f"{', '.join(late)} finished later, and better. It is"
            if late
            else " It is the best recipe of GSP that finished here, and"
        )
        return (
            f"{said} **below the best rival** ({rival}, {best:.2f} on average), as are all the "
            "others."
        )
    if worse:
        said += f" What did not work, that is, stayed below {rival}: {', '.join(worse)}."
    return said
