"""What pruning costs on a GPU: beside a training step of ResNet-50, in time and in memory.

``python -m benchmarks.prune_gpu --out DIR`` runs it alone and leaves its record in DIR.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from experiments import record
from experiments.networks import resnet50
from experiments.tables import table
from groupsparse import prune
from groupsparse.prune.gpu import selecting, tables

NEEDS_CUDA = True  # `python -m benchmarks` leaves it out elsewhere
SEED = 0
SPARSITY = 0.9
BUSY = 8_000_000  # cycles that the device sleeps, some milliseconds, while the host runs ahead
PLANS = {"whole model": prune.Plan(0.8), "per layer": prune.Plan.paper(0.8)}


class Training:
    """ResNet-50 on pictures that stay where they are: bf16, channels_last, SGD with momentum."""

    def __init__(self, quick: bool) -> None:
        torch.manual_seed(SEED)
        self.batch, side = (32, 64) if quick else (256, 224)
        self.model = resnet50().cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True
        )
        pictures = torch.randn(self.batch, 3, side, side, device="cuda", dtype=torch.bfloat16)
        self.x = pictures.to(memory_format=torch.channels_last)
        self.y = torch.randint(0, 1000, (self.batch,), device="cuda")

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def run(quick: bool) -> dict[str, Any]:
    """Time steps with and without projection and frozen masks, projections alone, and the cut."""
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.prune_gpu needs a CUDA device")
    warnings.simplefilter("ignore", prune.LayerCollapse)  # these networks are not trained
    torch.backends.cudnn.benchmark = True
    training = Training(quick)
    for _ in range(3):
        training.step()
    return {
        "device": torch.cuda.get_device_name(),
        "batch": training.batch,
        "parameters": training.parameters,
        "projections": _projections(training),
        "cut": _cut(training),  # before the steps, while the parameters are those of a network
        "steps": _steps(training, rounds=2 if quick else 4, each=3 if quick else 8),
        "memory": _memory(training),
    }


def report(results: dict[str, Any]) -> str:
    """Return the tables."""
    steps, cut, memory = results["steps"], results["cut"], results["memory"]
    plain = steps["plain"]
    projections = [
        (
            name,
            _ms(each["device"]),
            _ms(each["host"]),
            _ms(each["alone"]),
            f"{steps[name] / plain - 1.0:.2%}",
            f"{max(each['device'], each['host']) / plain / 150:.3%}",
            f"{memory[name]['peak'] / memory['plain']['peak'] - 1.0:.2%}",
            f"{memory[name]['moment']:.1%}",
        )
        for name, each in results["projections"].items()
    ]
    parts = [
        f"Device: {results['device']}. ResNet-50, {results['parameters']:,} parameters, batch "
        f"{results['batch']}, bf16 autocast, channels_last: one training step takes {_ms(plain)}, "
        f"its peak memory is {memory['plain']['peak'] / 2**30:.2f} GiB.",
        "Induced GSP. *device* is the time on the device where the host runs ahead of it, as in "
        "training; *host* how long the call keeps the host there, and *alone* both, where the "
        "device waits for the host and the host for the device. *Every step* is measured in "
        "training; *every 150 steps* is the larger one of device and host. *For a moment* is what "
        "it allocates, as a share of the parameters.",
        table(
            ("one multiplier", "device", "host", "alone", "every step", "every 150 steps",
             "peak memory", "for a moment"),
            projections,
        ),
        f"`prune.cut` of {cut['parameters']:,} parameters to {SPARSITY:.0%} zeros, masks included: "
        f"{cut['zeros']:,} zeros, the same ones as on a CPU: {cut['same as on a CPU']}. It "
        f"allocates {cut['moment']:.1%} of the parameters for a moment and leaves masks of "
        f"{8 * cut['mask bytes'] / cut['parameters']:.2f} bits an entry.",
        table(
            ("method", "median", "fastest"),
            [(n, _ms(t["median"]), _ms(t["fastest"])) for n, t in cut["times"].items()],
        ),
        *(_alone(cut["device"]) if "device" in cut else []),
        f"Training with frozen masks: a step takes {_ms(steps['frozen'])}, "
        f"{steps['frozen'] / plain - 1.0:+.1%}.",
    ]  # fmt: skip
    return "\n\n".join(parts)


def _alone(device: dict[str, dict[str, Any]]) -> list[str]:
    rows = [
        (n, _ms(t["clock"]), "no profiler" if t["kernels"] is None else _ms(t["kernels"]))
        for n, t in device.items()
    ]
    return [
        "`prune.cut` on the device alone, without the time that the device waits for the host: by "
        "the clock of a device that was kept busy until everything was queued, up to the call's "
        "one wait, and as the sum of what the profiler saw there. The rest of the wall time is the "
        "host's.",
        table(("`prune.cut`, on the device alone", "by its clock", "sum of its kernels"), rows),
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms"


def _projections(training: Training) -> dict[str, dict[str, float]]:
    """One projection of the whole network, from the multipliers of the one before."""
    model = training.model
    start = [p.detach().clone() for p in model.parameters()]
    found = {}
    for name, plan in PLANS.items():
        inducer = prune.Inducer(model, plan)
        seconds: dict[str, list[float]] = {"device": [], "host": [], "alone": []}
        for turn in range(24):
            _move(model, start)
            ahead = turn % 2 == 1
            if ahead:
                torch.cuda._sleep(BUSY)
            else:
                torch.cuda.synchronize()
            began = time.perf_counter()
            with _Stopwatch() as watch:
                inducer.project()
                kept = time.perf_counter() - began
            whole = time.perf_counter() - began
            if turn < 4:
                continue
            if ahead:
                seconds["device"].append(watch.seconds)
                seconds["host"].append(kept)
            else:
                seconds["alone"].append(whole)
        found[name] = {
            **{kind: statistics.median(times) for kind, times in seconds.items()},
            "hoyer": inducer.projections[0].hoyer,
        }
    _move(model, start)
    return found


@torch.no_grad()
def _move(model: nn.Module, start: Sequence[torch.Tensor]) -> None:
    """Where the parameters were, and a step of training away from there."""
    for parameter, value in zip(model.parameters(), start, strict=True):
        parameter.copy_(value)
        parameter.add_(torch.randn_like(value), alpha=1e-3)


class _Stopwatch:
    """Seconds on the device between entering and leaving."""

    def __enter__(self) -> _Stopwatch:
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)
        self._began.record()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.record()
        torch.cuda.synchronize()
        self.seconds = self._began.elapsed_time(self._ended) / 1e3


def _steps(training: Training, rounds: int, each: int) -> dict[str, float]:
    """Seconds of a step, alone and with a projection after it or with frozen masks, in turns."""
    masks = prune.cut(copy.deepcopy(training.model), sparsity=SPARSITY)
    attach: dict[str, Callable[[], Any]] = {
        "plain": lambda: None,
        **{
            name: lambda plan=plan: prune.Inducer(training.model, plan, training.optimizer, every=1)
            for name, plan in PLANS.items()
        },
        "frozen": lambda: masks.frozen(training.model, training.optimizer),
    }
    seconds: dict[str, list[float]] = {name: [] for name in attach}
    for round_ in range(rounds):
        for name, make in attach.items():
            attached = make()
            training.step()
            with _Stopwatch() as watch:
                for _ in range(each):
                    training.step()
            seconds[name] += [watch.seconds / each] if round_ else []
            if attached is not None:
                attached.remove()
    return {name: statistics.median(times) for name, times in seconds.items()}


def _memory(training: Training) -> dict[str, dict[str, float]]:
    """Peak memory of training, and with a projection after each step; and of one projection."""
    size = sum(parameter.nbytes for parameter in training.model.parameters())
    found: dict[str, dict[str, float]] = {"plain": {"peak": _peak(training.step)}}
    for name, plan in PLANS.items():
        with prune.Inducer(training.model, plan, training.optimizer, every=1) as inducer:
            peak = _peak(training.step)
        before = torch.cuda.memory_allocated()
        moment = _peak(inducer.project) - before
        found[name] = {"peak": peak, "moment": moment / size}
    return found


def _peak(call: Callable[[], object]) -> float:
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def _cut(training: Training) -> dict[str, Any]:
    """`prune.cut` beside sorting everything and beside torch's own global pruning."""
    from torch.nn.utils import prune as torch_prune

    # torch's own cannot work on channels_last.
    original = copy.deepcopy(training.model).to(memory_format=torch.contiguous_format)
    holder: dict[str, Any] = {}
    targets = prune.select(original, ("Conv2d", "Linear"))
    entries = sum(t.parameter.numel() for t in targets)
    k = round(SPARSITY * entries)

    def ours() -> None:
        holder["masks"] = prune.cut(holder["model"], sparsity=SPARSITY)

    def kth_value() -> None:
        found = prune.select(holder["model"], ("Conv2d", "Linear"))
        threshold = torch.cat([t.parameter.detach().abs().flatten() for t in found]).kthvalue(k)
        for target in found:
            parameter = target.parameter.detach()
            parameter.masked_fill_(parameter.abs() <= threshold.values, 0)

    def torchs_own() -> None:
        modules = [
            (m, "weight") for m in holder["model"].modules() if isinstance(m, nn.Conv2d | nn.Linear)
        ]
        torch_prune.global_unstructured(modules, torch_prune.L1Unstructured, amount=k)

    def eager() -> None:
        usable, tables.usable = tables.usable, lambda device: False
        try:
            ours()
        finally:
            tables.usable = usable

    contenders = {
        "prune.cut": ours,
        "prune.cut, channels_last": ours,
        "prune.cut without its kernels": eager,
        "torch.cat, kthvalue, masked_fill": kth_value,
        "torch.nn.utils.prune.global_unstructured": torchs_own,
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(12):
        for name, call in contenders.items():
            if repeat > 4 and call is not ours:
                continue
            other = name.endswith("channels_last")
            holder["model"] = copy.deepcopy(training.model if other else original)
            gc.collect()  # what the copy left behind is not to be collected in the call
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times[name] += [time.perf_counter() - began] if repeat > 1 else []
    device = {
        name: _cut_on_device(training.model if name.endswith("channels_last") else original)
        for name, call in contenders.items()
        if call is ours
    }
    holder["model"] = copy.deepcopy(original)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ours()
    moment = torch.cuda.max_memory_allocated() - before
    on_cpu = prune.cut(copy.deepcopy(original).cpu(), sparsity=SPARSITY)
    masks = holder["masks"]
    return {
        "parameters": entries,
        "zeros": masks.zeros,
        "same as on a CPU": on_cpu == masks,
        "mask bytes": sum(mask.bits.nbytes for mask in masks.packed.values()),
        "moment": moment / sum(t.parameter.nbytes for t in targets),
        "times": {
            name: {"median": statistics.median(seconds), "fastest": min(seconds)}
            for name, seconds in times.items()
        },
        "device": device,
    }


def _cut_on_device(original: nn.Module) -> dict[str, float | None]:
    """Seconds that the device works on a cut, the host being ahead of it, in two ways."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    waits = selecting.Outcome.wait

    def noted(outcome: selecting.Outcome) -> tuple[bool, list[int]]:
        ended.record()  # what follows the wait is the host's
        return waits(outcome)

    seconds = []
    for _ in range(5):
        model = copy.deepcopy(original)
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY)
        began.record()
        selecting.Outcome.wait = noted  # type: ignore[method-assign]
        try:
            prune.cut(model, sparsity=SPARSITY)
        finally:
            selecting.Outcome.wait = waits  # type: ignore[method-assign]
        torch.cuda.synchronize()
        seconds.append(began.elapsed_time(ended) / 1e3)
    return {"clock": statistics.median(seconds), "kernels": _kernel_seconds(original)}


def _kernel_seconds(original: nn.Module) -> float | None:
    """The sum over a cut's kernels and copies; None where nothing can be profiled."""
    model = copy.deepcopy(original)
    torch.cuda.synchronize()
    try:
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            prune.cut(model, sparsity=SPARSITY)
            torch.cuda.synchronize()
        rows = [row for row in seen.key_averages() if row.device_type == DeviceType.CUDA]
        total = sum(row.self_device_time_total for row in rows)
    except Exception as problem:  # whatever it lacks: this number is not worth the others
        print(f"no profile of the cut: {problem}")
        return None
    return total / 1e6 if total > 0 else None


def main() -> None:
    """Run, print the tables and leave the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prune_gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small pictures, few repeats")
    parser.add_argument("--out", type=Path, required=True, help="where the record goes")
    options = parser.parse_args()
    load, began = os.getloadavg()[0], time.perf_counter()
    results = run(options.quick)
    record.save(
        "prune_gpu",
        results,
        seconds=time.perf_counter() - began,
        seed=SEED,
        parameters={"quick": options.quick, "load before": round(load, 2)},
        folder=options.out,
    )
    print(report(results))


if __name__ == "__main__":
    main()
