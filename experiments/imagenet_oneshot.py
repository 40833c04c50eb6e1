"""ResNet-50, trained on ImageNet, pruned in one shot: GSP against magnitude and random pruning.

ImageNet itself is not needed: batch norm is recalibrated on 1000 training images, accuracy is
measured on 1300 validation images, before and after a short distillation from the dense network on
the 1000. The record is written after every result, so a run that ends early has lost nothing, and
one that is started again with ``--resume`` measures only what is missing::

    python -m experiments.imagenet_convert package/ResNet50 resnet50.safetensors
    python -m experiments.imagenet_oneshot --data DIR --weights resnet50.safetensors
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments import record
from experiments.cifar import Images
from experiments.earlier import ORIGIN
from experiments.imagenet_convert import load_pretrained
from experiments.imagenet_distil import (
    Arithmetic,
    Lessons,
    Student,
    accuracy,
    distil,
    recalibrate,
)
from experiments.imagenet_methods import Methods, state_of, zeros_per_layer
from experiments.imagenet_report import LEVELS, NAME, summary
from experiments.imagenet_sets import find, load_images

FIRST_LEVELS = (0.8, 0.9, 0.7)  # distilled first, where the methods are furthest apart


@dataclass
class Study:
    """The network, the images, and everything measured so far."""

    model: nn.Module
    train: Images
    check: Images
    arithmetic: Arithmetic
    settings: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    dense: dict[str, Any] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)  # sessions that this one goes on

    def __post_init__(self) -> None:
        self.methods = Methods(self.model, self.settings["seed"])
        self.trained: dict[str, Tensor] = state_of(self.model)
        self.student = Student(self.model, self.arithmetic)
        self._lessons: Lessons | None = None

    def measure_dense(self) -> None:
        """Measure the network as it was trained, and with its batch norm recalibrated."""
        trained = accuracy(self.model, self.check, self.arithmetic)
        recalibrated = self.recalibrated()
        self.model.load_state_dict(self.trained)
        self.dense = {"trained": trained, "recalibrated": recalibrated}

    def has(self, method: str, level: float, distilled: bool) -> bool:
        """Whether this was measured before."""
        key = (method, level, distilled)
        return any((run["method"], run["level"], run["distilled"]) == key for run in self.runs)

    def measure(self, method: str, level: float, distilled: bool) -> dict[str, Any]:
        """Prune, distil if asked for, recalibrate; keep and return what came out."""
        lessons = self.lessons if distilled else None
        self.model.load_state_dict(self.trained)
        began = time.perf_counter()
        masks, facts = self.methods.prune(method, level)
        pruned = time.perf_counter()
        run: dict[str, Any] = {"method": method, "level": level, "distilled": distilled, **facts}
        if lessons is not None:
            losses = distil(self.student, masks, lessons, rate=self.settings["rate"])
            last = losses[-max(len(losses) // self.settings["epochs"], 1) :]
            run["loss of the first and last epoch"] = [
                sum(part) / len(part) for part in (losses[: len(last)], last)
            ]
        run |= self.recalibrated()
        run["zeros"] = masks.zeros
        run["seconds to prune"] = round(pruned - began, 3)
        run["seconds"] = round(time.perf_counter() - began, 3)
        if self.earlier:
            run["of session"] = len(self.earlier)
        if not distilled:  # the same zeros with and without
            run["zeros per layer"] = zeros_per_layer(masks)
        self.runs.append(run)
        return run

    def recalibrated(self) -> dict[str, float]:
        """Recalibrate and measure; in float32 what float16 is too small for."""
        try:
            recalibrate(self.model, self.train, self.arithmetic)
            return accuracy(self.model, self.check, self.arithmetic)
        except FloatingPointError:
            recalibrate(self.model, self.train, Arithmetic())
            return accuracy(self.model, self.check, Arithmetic())

    @property
    def lessons(self) -> Lessons:
        """The views and the dense network's answers; made when first asked for."""
        if self._lessons is None:
            self.model.load_state_dict(self.trained)
            self._lessons = Lessons.by(
                self.model,
                self.train,
                self.arithmetic,
                **{name: self.settings[name] for name in ("epochs", "batch", "seed")},
            )
            if self.train.pixels.is_cuda:
                self.student.record(self._lessons.views[0], self._lessons.answers[0])
        return self._lessons

    def save(self, seconds: float, folder: Path) -> None:
        """Write everything measured so far, here and in the sessions before."""
        origin = record.provenance()
        sessions = [*self.earlier, {**origin, "seconds": round(seconds, 3)}]
        record.save(
            NAME,
            self.results() | ({"sessions": sessions} if self.earlier else {}),
            seconds=sum(each["seconds"] for each in sessions),
            seed=self.settings["seed"],
            folder=folder,
            origin=origin,
        )

    def results(self) -> dict[str, Any]:
        """Return what the record holds."""
        entries = self.methods.targets["GSP whole model"].entries
        facts = {"settings": self.settings, "parameters that may go": entries}
        return summary(self.dense, self.runs, len(self.check)) | facts

    def resume(self, path: Path) -> None:
        """Take over what a record holds, if it was made with the same settings."""
        found = json.loads(path.read_text(encoding="utf-8"))
        results = found["results"]
        if results["settings"] != self.settings:
            raise SystemExit(
                f"{path.name} was made with {results['settings']}, not {self.settings}"
            )
        self.dense, self.runs = results["dense"], results["runs"]
        # Other files, another machine perhaps: every run says which session it is from.
        first = {key: found[key] for key in (*ORIGIN, "seconds")}
        self.earlier = results.get("sessions", [first])
        for run in self.runs:
            run.setdefault("of session", 0)


@dataclass
class Budget:
    """Seconds that may be spent; whoever asks says how long the next thing took before."""

    seconds: float
    began: float = field(default_factory=time.perf_counter)
    longest: dict[bool, float] = field(default_factory=dict)

    def spent(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.began

    def allows(self, distilled: bool) -> bool:
        """Whether another run of this kind, as long as the longest one, ends in time."""
        return self.spent() + self.longest.get(distilled, 0.0) < self.seconds

    def note(self, distilled: bool, seconds: float) -> None:
        """Remember how long a run took, start-up of its kind included."""
        self.longest[distilled] = max(seconds, self.longest.get(distilled, 0.0))


def run_all(
    study: Study,
    levels: list[float],
    names: list[str],
    *,
    stages: tuple[bool, ...],
    budget: Budget,
    keep: Callable[[], None],
) -> bool:
    """Measure everything that is missing; return False if the budget was too small for it."""
    if not study.dense:
        study.measure_dense()
        keep()
    print({name: round(value["top1"], 2) for name, value in study.dense.items()}, flush=True)
    for distilled in stages:
        first = [level for level in FIRST_LEVELS if level in levels]
        order = first + [level for level in levels if level not in first]
        for level in order if distilled else levels:
            for name in names:
                if study.has(name, level, distilled):
                    continue
                if not budget.allows(distilled):
                    return False
                before = budget.spent()
                run = study.measure(name, level, distilled)
                budget.note(distilled, budget.spent() - before)
                keep()
                print(
                    f"{budget.spent():6.1f} s  {'distilled' if distilled else 'one shot':9s} "
                    f"{level:.0%} {name:34s} top-1 {run['top1']:5.2f} top-5 {run['top5']:5.2f}",
                    flush=True,
                )
    return True


def main() -> None:
    """Run the comparison, or what is missing of it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.imagenet_oneshot", description=__doc__
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders to look in")
    parser.add_argument("--weights", type=Path, required=True, help="from imagenet_convert")
    parser.add_argument("--levels", type=float, nargs="+", default=list(LEVELS))
    parser.add_argument("--methods", nargs="+", help="some of them; all unless told")
    parser.add_argument("--only-eval", action="store_true", help="without distillation")
    parser.add_argument("--epochs", type=int, default=10, help="of distillation")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--images", type=int, help="only so many of each set, to try it out")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="a record to go on with")
    parser.add_argument("--out", type=Path, default=record.RECORDS, help="folder of the record")
    options = parser.parse_args()

    budget = Budget(options.budget_seconds)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_pretrained(options.weights).to(device, memory_format=torch.channels_last)
    train, check = (
        load_images(find(options.data, name), options.images).to(device)
        for name in ("train1000.npz", "val1300.npz")
    )
    settings = {name: getattr(options, name) for name in ("epochs", "batch", "rate", "seed")}
    settings["images"] = [len(train), len(check)]
    study = Study(model, train, check, Arithmetic.of(device), settings)
    if options.resume is not None:
        study.resume(options.resume)
    names = options.methods or study.methods.names
    if unknown := set(names) - set(study.methods.names):
        raise SystemExit(f"no method {sorted(unknown)}; there are {study.methods.names}")
    print(f"{budget.spent():6.1f} s  {len(train)} + {len(check)} images are there", flush=True)

    def keep() -> None:
        study.save(budget.spent(), options.out)

    stages = (False,) if options.only_eval else (False, True)
    done = run_all(study, options.levels, names, stages=stages, budget=budget, keep=keep)
    print("complete" if done else "the budget is spent; --resume goes on from the record")


if __name__ == "__main__":
    main()
