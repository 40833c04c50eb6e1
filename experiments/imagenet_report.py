"""What the runs on the pretrained ResNet-50 say: a table for the report, and the picture.

python -m experiments.imagenet_report
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from experiments import record
from experiments.tables import table

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
    "images towards the dense network's answers. The paper trains on all of ImageNet; that recipe "
    "is `experiments.imagenet`."
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
        "note": NOTE.format(images=images, error=error),
        "figures": [FIGURE],
        "table": {"columns": columns, "rows": rows},
        "dense": dense,
        "runs": runs,
    }


def _cell(found: dict[str, Any]) -> str:
    return f"{found['top1']:.1f} ({found['top5']:.1f})"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw top-1 accuracy against zeros, before and after the distillation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    runs = results["runs"]
    stages = [stage for stage in STAGES if any(run["distilled"] == stage for run in runs)]
    figure, panels = plt.subplots(
        1, len(stages), figsize=(max(4.6 * len(stages), 8), 5.2), sharey=True, squeeze=False
    )
    for axes, stage in zip(panels[0], stages, strict=True):
        for method, (colour, line, marker) in STYLES.items():
            points = sorted(
                (100 * run["level"], run["top1"])
                for run in runs
                if run["method"] == method and run["distilled"] == stage
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
        axes.axhline(results["dense"]["trained"]["top1"], color="0.6", linewidth=1, label="dense")
        axes.set_title(f"{STAGES[stage]}, batch norm recalibrated", fontsize=10)
        axes.set_xlabel("zeros, %")
        axes.grid(alpha=0.25)
    panels[0][0].set_ylabel("top-1 accuracy, %")
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, fontsize=8, ncols=3, loc="lower center")
    figure.tight_layout(rect=(0, 0.17, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Draw the record and print its table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.imagenet_report", description=__doc__
    )
    parser.add_argument("--folder", type=Path, default=record.RECORDS, help="of the record")
    parser.add_argument("--out", type=Path, default=record.RECORDS.parent / FIGURE)
    options = parser.parse_args()
    results = record.load("imagenet_resnet50", folder=options.folder)["results"]
    draw(results, options.out)
    print(table(results["table"]["columns"], results["table"]["rows"]))
    print(results["note"])


if __name__ == "__main__":
    main()
