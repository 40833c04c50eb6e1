"""Which rows of Tables 1 and 2 and of the search have no record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments import recipe, table1
from experiments.candidates import EVERYTHING, PAPER
from experiments.jobs import Job, Setting

WHY = "for want of GPU time"


def level_name(level: float) -> str:
    """A fraction of zeros as text."""
    return f"{100 * level:g} %"


def number(level: str) -> float:
    """The percentage again."""
    return float(level.split()[0])


def options_of(found: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """The command's options, of the first record of a table."""
    for each in found.values():
        if isinstance(each["results"], dict) and each["results"].get("table of runs") == wanted:
            options: Mapping[str, Any] = each["parameters"].get("options", {})
            return options
    return {}


def missing_of_table1(
    found: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], choice: recipe.Choice
) -> str:
    """Which rows, levels and seeds of Table 1 have no record, and what would run them."""
    setting = Setting("table1", runs[0]["network"], 1, 1, 128)
    have = {(run["label"], run["level"], run["seed"]) for run in runs if run["parent"] is not None}
    seeds = sorted({0, 1, 2, *(run["seed"] for run in runs)})
    wanted: dict[int, dict[str, list[float]]] = {}
    lost: dict[int, dict[str, list[float]]] = {}
    options = options_of(found, "table1")
    further = {key: options.get(key, ()) for key in ("recipes", "rivals")}
    for job in _leaves(table1.jobs(setting, seeds, choice, **further)):
        wanted.setdefault(job.seed, {}).setdefault(job.label, []).append(job.level)
        if (job.label, job.level, job.seed) not in have:
            lost.setdefault(job.seed, {}).setdefault(job.label, []).append(job.level)
    if not lost:
        return "All rows were run."
    parts = []
    whole = [seed for seed in lost if lost[seed] == wanted[seed]]
    for seed in (seed for seed in lost if seed not in whole):
        rows = "; ".join(
            label
            if levels == wanted[seed][label]
            else f"{label} at {', '.join(level_name(level) for level in sorted(levels))}"
            for label, levels in lost[seed].items()
        )
        parts.append(f"seed {seed}: {rows}")
    if whole:
        parts.append(f"every row of seed{'s' * (len(whole) > 1)} {' and '.join(map(str, whole))}")
    return f"**Not run**, {WHY}{_budget(found)}: {'. '.join(_capital(parts))}.{_elsewhere(runs)}"


def _elsewhere(runs: Iterable[Mapping[str, Any]]) -> str:
    levels = sorted({run["level"] for run in runs if run["label"] == "gradual magnitude"} - {0.0})
    if not levels:
        return ""
    return (
        " An empty cell of another row is not planned: gradual pruning trains anew for each level, "
        "and a floor keeps next to nothing below 98 %."
    )


def missing_of_search(
    found: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], choice: recipe.Choice
) -> str:
    """Which candidates had no result when the choice was made, and which settings are defaults."""
    setting = Setting("recipe", runs[0]["network"], 1, 1, 128)
    have = {(run["label"], run["level"]) for run in runs if run["parent"] is not None}
    trained = {run["name"] for run in runs if run["parent"] is None}
    planned: dict[str, list[Job]] = {}
    options = options_of(found, "recipe")
    levels = options.get("search_levels", recipe.LEVELS)
    labels = options.get("search_labels", ())
    for job in _leaves(recipe.jobs(setting, levels=levels, labels=labels)):
        planned.setdefault(job.label, []).append(job)
    lost = [
        label
        for label, jobs in planned.items()
        if any((label, job.level) not in have for job in jobs)
    ]
    said = []
    if lost:
        said.append(f"**Not finished** in the time of the search: {'; '.join(lost)}.")
        begun = sum(not any(run["parent"] == name for run in runs) for name in trained)
        if begun:
            said.append(f"{begun} of their networks were trained but not cut any more.")
    ranked = {label for label, _ in choice.ranking}
    for kind, label, others in (
        ("the paper's setting", choice.paper, PAPER),
        ("DeepHoyer", choice.deephoyer, recipe.DEEPHOYER),
    ):
        if ranked.isdisjoint(others):
            said.append(f"For {kind} Table 1 has what was set before, {label}: nothing chose it.")
        elif not ranked.issuperset(others):
            said.append(f"For {kind} only {label} was tried.")
        else:
            said.append(f"For {kind} the better of {'; '.join(others)} is {label}.")
    return " ".join(said)


def missing_of_table2(found: Mapping[str, Any], lost: Sequence[tuple[str, str, float]]) -> str:
    """The rows of Table 2 without a record: network, label, level."""
    if not lost:
        return ""
    rows: dict[tuple[str, str], list[str]] = {}
    for network, label, level in lost:
        rows.setdefault((network, label), []).append(level_name(level))
    listed = "; ".join(
        f"{network}, {label} at {', '.join(levels)}" for (network, label), levels in rows.items()
    )
    return f"**Not run**, {WHY}{_budget(found)}: {listed}."


def _leaves(jobs: Iterable[Job]) -> list[Job]:
    """Those that finetune at the setting's own rate, once each."""
    own = [job for job in jobs if job.parent is not None and job.label in {*EVERYTHING, "dense"}]
    return list({(job.label, job.level, job.seed): job for job in own}.values())


def _budget(found: Mapping[str, Any]) -> str:
    """How long the sessions were that made the records."""
    spent: dict[str, float] = {}
    for each in found.values():
        about = each.get("parameters") or {}
        if "choice" in about and "seconds" in about:
            spent[each["utc"]] = about["seconds"]
    had = "sessions" if len(spent) > 1 else "session"
    return f" (the {had} had {sum(spent.values()):.0f} s)" if spent else ""


def _capital(parts: Sequence[str]) -> list[str]:
    return [part[0].upper() + part[1:] if place else part for place, part in enumerate(parts)]
