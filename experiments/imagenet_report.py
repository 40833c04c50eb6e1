"""What the runs on the pretrained ResNet-50 say: a table for the report, and the picture.

python -m experiments.imagenet_report
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from experiments import record
from experiments.tables import table

NAME = "imagenet_resnet50"
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
FIGURE = "figures/imagenet_resnet50.png"
STAGES = {False: "one shot", True: "distilled"}
TITLE = "ResNet-50 on ImageNet, pruned in one shot"
NOTE = (
    "Top-1 (top-5) accuracy in percent on {images} validation images. They are an easier subset: "
    "compare methods on them, do not quote them as ImageNet accuracy. The standard error of one "
    "figure is about {error:.1f} points; differences between methods, which see the same images, "
    "are known better. One seed. All methods have exactly the same number of zeros among the "
    "parameters of convolutions and classifier; after pruning, batch norm is recalibrated on 1000 "
    "training images. “Distilled”: before that, a short training of the survivors on the same "
    "images towards the dense network's answers. The paper's experiment is another one: it trains "
    "on all of ImageNet, for 120 epochs with projections and 140 of finetuning, and loses 0.41, "
    "0.8, 1.43 and 2.2 points at 70, 80, 85 and 90 % zeros. That recipe is `experiments.imagenet`; "
    "it was not run, since the images are not here."
)
# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes tell values apart too.
STYLES = {
    "GSP per layer, projected values": ("#0072B2", "--", "o"),
    "GSP per layer, original values": ("#0072B2", "-", "o"),
    "GSP whole model, projected values": ("#D55E00", "--", "s"),
    "GSP whole model, original values": ("#D55E00", "-", "s"),
    "GSP whole model, scaled, projected values": ("#56B4E9", "--", "P"),
    "GSP whole model, scaled, original values": ("#56B4E9", "-", "P"),
    "magnitude, global": ("#000000", "-", "^"),
    "magnitude, global, floor 1": ("#E69F00", ":", "v"),
    "magnitude, per layer": ("#009E73", "-", "D"),
    "random": ("#CC79A7", "-", "x"),
}


def summary(dense: dict[str, Any], runs: list[dict[str, Any]], images: int) -> dict[str, Any]:
    """Return the record's results: every run, and the table that shows them."""
    levels = sorted({run["level"] for run in runs})
    reference = dense.get("trained", {"top1": 0.0})["top1"] / 100
    error = 100 * (reference * (1 - reference) / images) ** 0.5
    rows = [["dense", name, _cell(found), *[""] * len(levels)] for name, found in dense.items()]
    for distilled, stage in STAGES.items():
        for method in dict.fromkeys(run["method"] for run in runs):
            cells = {
                run["level"]: _cell(run)
                for run in runs
                if run["method"] == method and run["distilled"] == distilled
            }
            if cells:
                rows.append([method, stage, "", *(cells.get(level, "") for level in levels)])
    columns = ["method", "stage", *(f"{100 * level:g} % zeros" for level in (0.0, *levels))]
    return {
        "title": TITLE,
        "note": " ".join(filter(None, (NOTE.format(images=images, error=error), missing(runs)))),
        "figures": [FIGURE],
        "table": {"columns": columns, "rows": rows},
        "dense": dense,
        "runs": runs,
    }


def refreshed(results: dict[str, Any]) -> dict[str, Any]:
    """The same results, with the table and the note as they would be written today."""
    new = summary(results["dense"], results["runs"], results["settings"]["images"][1])
    said = (new["note"], measured(results.get("sessions", []), results["runs"]))
    return results | new | {"note": " ".join(filter(None, said))}


def measured(sessions: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    """Say how many runs are from which session, where there was more than one."""
    if len(sessions) < 2:
        return ""
    counts = [sum(run["of session"] == place for run in runs) for place in range(len(sessions))]
    parts = [
        f"{count} at commit {(each['commit'] or 'unknown')[:10]} "
        f"({'with local changes, ' if each['dirty'] else ''}{each['seconds']:.0f} s)"
        for count, each in zip(counts, sessions, strict=True)
    ]
    return f"Runs by session: {', '.join(parts)}."


def missing(runs: list[dict[str, Any]]) -> str:
    """Say which methods, levels and stages there is no run of."""
    have = {(run["distilled"], run["level"], run["method"]) for run in runs}
    lost: dict[tuple[str, str], list[str]] = {}
    for distilled, stage in STAGES.items():
        for level in LEVELS:
            methods = [name for name in STYLES if (distilled, level, name) not in have]
            if methods:
                listed = "every method" if len(methods) == len(STYLES) else "; ".join(methods)
                lost.setdefault((stage, listed), []).append(f"{100 * level:g}")
    if not lost:
        return ""
    said = ". ".join(
        f"{stage.capitalize()}, {', '.join(levels)} % zeros: {listed}"
        for (stage, listed), levels in lost.items()
    )
    return (
        f"**Not run**, for want of GPU time: {said}. "
        "`python -m experiments.imagenet_oneshot --resume RECORD` measures what is missing."
    )


def _cell(found: dict[str, Any]) -> str:
    return f"{found['top1']:.1f} ({found['top5']:.1f})"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw top-1 accuracy against zeros, before and after the distillation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    runs, dense = results["runs"], results["dense"]["trained"]["top1"]
    stages = [stage for stage in STAGES if any(run["distilled"] == stage for run in runs)]
    figure, panels = plt.subplots(
        1, len(stages), figsize=(max(5.2 * len(stages), 8), 5.2), squeeze=False
    )
    for axes, stage in zip(panels[0], stages, strict=True):
        own = [run for run in runs if run["distilled"] == stage]
        axes.set_title(f"{STAGES[stage]}, batch norm recalibrated", fontsize=10)
        if len({run["level"] for run in own}) > 1:
            _lines(axes, own)
            axes.axhline(dense, color="0.6", linewidth=1, label="dense")
        else:
            _bars(axes, own, [run for run in runs if not run["distilled"]], dense)
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, fontsize=8, ncols=3, loc="lower center")
    figure.tight_layout(rect=(0, 0.17, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _lines(axes: Any, runs: list[dict[str, Any]]) -> None:
    """A line for each method, accuracy against zeros."""
    for method, (colour, line, marker) in STYLES.items():
        points = sorted(
            (100 * run["level"], run["top1"]) for run in runs if run["method"] == method
        )
        if points:
            axes.plot(
                *zip(*points, strict=True),
                line,
                color=colour,
                marker=marker,
                label=method,
                markersize=5,
                fillstyle="none",
            )
    axes.set(xlabel="zeros, %", ylabel="top-1 accuracy, %")
    axes.set_xticks(sorted({100 * run["level"] for run in runs}))
    axes.grid(alpha=0.25)


def _bars(
    axes: Any, runs: list[dict[str, Any]], others: list[dict[str, Any]], dense: float
) -> None:
    """A bar for each method at the only level there is; a stroke where it was in one shot."""
    level = runs[0]["level"]
    before = {run["method"]: run["top1"] for run in others if run["level"] == level}
    order = [method for method in STYLES if any(run["method"] == method for run in runs)][::-1]
    for place, method in enumerate(order):
        value = next(run["top1"] for run in runs if run["method"] == method)
        colour, line, _ = STYLES[method]
        axes.barh(
            place, value, 0.4, color=colour if line == "-" else "none", edgecolor=colour, alpha=0.8
        )
        if method in before:
            axes.plot([before[method]] * 2, [place - 0.2, place + 0.2], color="black", linewidth=2)
        axes.text(1.0, place + 0.22, f"{method}: {value:.1f}", fontsize=8, va="bottom")
    axes.axvline(dense, color="0.6", linewidth=1)
    axes.set(yticks=[], ylim=(-0.5, len(order) - 0.25))
    axes.set_xlabel(f"top-1 accuracy at {100 * level:g} % zeros, %; black stroke: one shot")
    axes.grid(alpha=0.25, axis="x")


def main() -> None:
    """Draw the record and print its table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.imagenet_report", description=__doc__
    )
    parser.add_argument("--folder", type=Path, default=record.RECORDS, help="of the record")
    parser.add_argument("--out", type=Path, default=record.RECORDS.parent / FIGURE)
    options = parser.parse_args()
    results = refreshed(record.load(NAME, folder=options.folder)["results"])
    draw(results, options.out)
    print(table(results["table"]["columns"], results["table"]["rows"]))
    print(results["note"])


if __name__ == "__main__":
    main()
