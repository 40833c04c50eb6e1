"""The paper's ResNet-50 on ImageNet: induced GSP, cut, finetuning with the zeros frozen.

One process per GPU; started again with the same arguments, a run that was killed goes on at its
last checkpoint. ``--data`` has ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``::

    torchrun --nproc-per-node 8 -m experiments.imagenet --data DIR --checkpoints DIR --sparsity 0.9

The defaults are the paper's: 120 epochs with the rate divided by ten after 70 and 100, each layer
projected to an average Hoyer measure of 0.8 every 500 steps from epoch 40 on, then 140 epochs of
finetuning from a rate of 0.001, divided by ten at the same epochs. The paper does not say batch,
first rate and weight decay: 256 images, 0.1 and 1e-4 are what ResNet-50 is usually trained with,
and rates grow with the number of images per step. ``--hoyer 0`` trains without projections, so that
the cut alone, which is magnitude pruning, can be compared at the same cost.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments import record
from experiments.imagenet_training import Data, Phase, Processes
from experiments.networks import resnet50
from experiments.training import stepwise
from groupsparse import prune

PRECISIONS = {"bfloat16": torch.bfloat16, "float32": None}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.imagenet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and val/")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder; kept by the run")
    parser.add_argument("--hoyer", type=float, default=0.8, help="of the projections; 0: none")
    parser.add_argument("--every", type=int, default=500, help="steps between projections")
    parser.add_argument("--sparsity", type=float, default=0.8, help="zeros at the end")
    parser.add_argument("--floor", type=int, default=0, help="what the cut leaves of each filter")
    parser.add_argument("--budget", default="layer", choices=["layer", "model"])
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument(
        "--project-from", type=int, default=40, help="epoch of the first projection"
    )
    parser.add_argument("--finetune", type=int, default=140, help="epochs after the cut")
    parser.add_argument("--milestones", type=int, nargs="*", default=[70, 100])
    parser.add_argument("--batch", type=int, default=32, help="images per process and step")
    parser.add_argument("--rate", type=float, default=0.1, help="for 256 images per step")
    parser.add_argument("--finetune-rate", type=float, default=0.001, help="likewise")
    parser.add_argument("--warmup", type=int, default=5, help="epochs in which the rate grows")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--precision", choices=sorted(PRECISIONS), help="bfloat16 on a GPU")
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--width", type=int, default=64, help="of the network")
    parser.add_argument("--workers", type=int, default=8, help="that decode, per process")
    parser.add_argument("--save-every", type=int, default=2000, help="steps; and every epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="imagenet_recipe", help="of the record")
    parser.add_argument("--out", type=Path, default=record.RECORDS, help="folder of the record")
    return parser.parse_args()


def run(options: argparse.Namespace, processes: Processes) -> dict[str, Any]:
    """Train, cut and finetune; every process returns the same results."""
    torch.manual_seed(options.seed)
    data = Data(
        options.data,
        processes,
        size=options.size,
        batch=options.batch,
        seed=options.seed,
        workers=options.workers,
    )
    model = resnet50(data.classes, width=options.width)
    model = model.to(processes.device, memory_format=torch.channels_last)
    options.checkpoints.mkdir(parents=True, exist_ok=True)

    trained = phase("train", model, data, processes, options)
    inducer = inducer_for(model, trained.optimizer, len(data), options)
    if inducer is not None:
        trained.attached = {"inducer": inducer}
    with inducer or nullcontext():
        trained.run(options.epochs)
    results: dict[str, Any] = {"trained": last_three(trained.curve), "curve": trained.curve}
    results["layers before the cut"] = prune.report(model).as_dict()

    # A restart comes through here again: the cut of the same parameters is the same cut.
    masks = prune.cut(model, options.sparsity, floor=options.floor)
    tuned = phase("finetune", model, data, processes, options)
    results["cut"] = tuned.accuracy()
    with masks.frozen(model, tuned.optimizer):
        tuned.run(options.finetune)
    results |= {"finetuned": last_three(tuned.curve), "finetune curve": tuned.curve}
    results["layers"] = prune.report(model).as_dict()
    results["zeros"] = masks.zeros
    return results


def phase(
    name: str, model: nn.Module, data: Data, processes: Processes, options: argparse.Namespace
) -> Phase:
    """Return one of the two parts of the training with its own optimizer."""
    first = options.rate if name == "train" else options.finetune_rate
    rate = schedule(
        first * options.batch * processes.count / 256,
        options.milestones,
        options.warmup if name == "train" else 0,
    )
    default = "bfloat16" if processes.device.type == "cuda" else "float32"
    return Phase(
        model,
        torch.optim.SGD(
            model.parameters(), rate(0.0), momentum=0.9, weight_decay=options.weight_decay
        ),
        data,
        processes,
        rate,
        PRECISIONS[options.precision or default],
        options.checkpoints / f"{name}.pt",
        options.save_every,
    )


def schedule(rate: float, milestones: list[int], warmup: int) -> Callable[[float], float]:
    """Return the paper's steps, after a rise from a tenth over the first epochs."""
    steps = stepwise(rate, milestones)

    def at(epochs: float) -> float:
        share = 0.1 + 0.9 * epochs / warmup if epochs < warmup else 1.0
        return share * steps(int(epochs))

    return at


def inducer_for(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, options: argparse.Namespace
) -> prune.Inducer | None:
    """Return what projects during training, or None where nothing is to be projected."""
    if not options.hoyer:
        return None
    plan = prune.Plan.paper(options.hoyer)
    if options.budget == "model":
        plan = prune.Plan(options.hoyer, vectors="filter", budget="model")
    return prune.Inducer(
        model, plan, optimizer, every=options.every, start=options.project_from * steps
    )


def last_three(curve: list[dict[str, float]]) -> dict[str, float]:
    """Return the means over the last three epochs."""
    last = curve[-3:]
    return {key: sum(point[key] for point in last) / len(last) for key in ("top1", "top5")}


def main() -> None:
    """Run the recipe and leave a record."""
    options = arguments()
    began = time.perf_counter()
    processes = Processes.join()
    try:
        results = run(options, processes)
        seconds = time.perf_counter() - began
        settings = {k: v for k, v in vars(options).items() if not isinstance(v, Path)}
        settings["processes"] = processes.count
        if processes.rank == 0:
            record.save(
                options.name,
                results,
                seconds=seconds,
                seed=options.seed,
                parameters=settings,
                folder=options.out,
            )
            print({name: results[name] for name in ("trained", "cut", "finetuned")})
    finally:
        processes.leave()


if __name__ == "__main__":
    main()
