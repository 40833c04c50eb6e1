"""The projection of CUDA tensors against its floor: a copy of the same tensors.

``python -m benchmarks.gpu --out DIR`` runs it alone and leaves its record in DIR.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import groupsparse as gs
from experiments import record
from experiments.networks import resnet50, vgg16
from experiments.tables import table

NEEDS_CUDA = True  # `python -m benchmarks` leaves it out elsewhere
SEED = 0
NOISE = 0.01  # of the values, between the problem that a start comes from and the one solved
ROUNDS = 15


def parameters_of(model: nn.Module) -> list[Tensor]:
    """The weights of convolutions and linear layers, normal with the deviation that they have."""
    kinds = nn.Conv2d | nn.Linear
    found = [m.weight.detach() for m in model.modules() if isinstance(m, kinds)]
    return [torch.randn(w.shape, device="cuda") * w.std().cuda() for w in found]


def transformer(layers: int, dtype: torch.dtype) -> list[Tensor]:
    """The linear layers of a 7 B-parameter transformer."""
    shapes = [*[(4096, 4096)] * 4, (11008, 4096), (11008, 4096), (4096, 11008)] * layers
    shapes.append((32000, 4096))
    return [torch.randn(shape, device="cuda", dtype=dtype) * 0.02 for shape in shapes]


def sets(quick: bool) -> dict[str, tuple[Callable[[], list[Tensor]], float]]:
    """What is projected, and how many times the copy it may take cold."""
    big = 2 if quick else 32
    return {
        "ResNet-50": (lambda: parameters_of(resnet50()), 5.0),
        "CIFAR VGG-16": (lambda: parameters_of(vgg16()), 6.0),
        "one 11008 × 4096": (lambda: [torch.randn(11008, 4096, device="cuda")], 4.0),
        "7 B transformer, bfloat16": (lambda: transformer(big, torch.bfloat16), 4.0),
    }


def run(
    quick: bool, keep: Callable[[dict[str, Any]], object] = lambda results: None
) -> dict[str, Any]:
    """Time every case, and compare it with an independent answer in float64.

    ``keep`` gets what there is after each set: a run on a machine that is gone leaves that behind.
    """
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu needs a CUDA device")
    torch.manual_seed(SEED)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "bandwidth": _bandwidth(),
        "cases": [],
        "shapes": [],
        "rivals": {},
    }
    for name, (make, must) in sets(quick).items():
        tensors = make()
        targets = (0.8, 0.95) if name == "ResNet-50" else (0.9,)
        for shared in (False, True) if len(tensors) > 1 else (False,):
            for target in targets:
                case = _case(tensors, target, shared)
                results["cases"].append({"name": name, "must": must, **case})
                print(results["cases"][-1], flush=True)
        keep(results)
        if name in ("ResNet-50", "one 11008 × 4096"):
            results["rivals"][name] = _rivals(tensors, quick)
            print(results["rivals"][name], flush=True)
        del tensors
        keep(results)
        torch.cuda.empty_cache()
    for name, x, axis in _odd_shapes(quick):
        results["shapes"].append({"name": name, **_case([x], 0.9, False, axis=axis)})
        print(results["shapes"][-1], flush=True)
        keep(results)
    tensors = parameters_of(resnet50())
    case = _case(tensors, 0.8, False, weights=[torch.rand_like(x) + 0.5 for x in tensors])
    results["cases"].append({"name": "ResNet-50, weighted", **case})
    print(results["cases"][-1], flush=True)
    return results


def _odd_shapes(quick: bool) -> list[tuple[str, Tensor, Any]]:
    few = 10 if quick else 1
    side = 8192 // few
    conv = torch.randn(512, 512, 3, 3, device="cuda").to(memory_format=torch.channels_last)
    return [
        ("1 000 000 filters of 9", torch.randn(1_000_000 // few, 9, device="cuda"), -1),
        ("one vector of 10⁸", torch.randn(1, 100_000_000 // few, device="cuda"), -1),
        ("columns of 8192 × 8192", torch.randn(side, side, device="cuda"), 0),
        ("rows of 8192 × 8192", torch.randn(side, side, device="cuda"), -1),
        ("rows of 4096 × 4096, float64",
         torch.randn(side // 2, side // 2, device="cuda", dtype=torch.float64), -1),
        ("512 × 512 × 3 × 3, channels_last", conv, None),
    ]  # fmt: skip


def _bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / _median(lambda: y.copy_(x))


def _median(call: Callable[[], object], prepare: Callable[[], object] | None = None) -> float:
    """Median seconds on the device; the host runs ahead, so launches cost what they cost there."""
    seconds = []
    for turn in range(ROUNDS + 2):
        if prepare is not None:
            prepare()
        torch.cuda._sleep(300_000)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        call()
        ended.record()
        torch.cuda.synchronize()
        if turn > 1:
            seconds.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(seconds)


def _case(
    tensors: Sequence[Tensor],
    target: float,
    shared: bool,
    *,
    axis: Any = None,
    weights: Sequence[Tensor] | None = None,
) -> dict[str, Any]:
    """One set of tensors to one target: cold, from a start, and beside the copy."""
    work = [torch.empty_like(x) for x in tensors]
    plan = gs.Projector(work, axis=axis, shared=shared, weights=weights)

    def restore(noise: float = 0.0) -> None:
        torch._foreach_copy_(work, list(tensors))
        if noise:
            for x in work:
                x.add_(torch.randn_like(x).mul_(x.std()), alpha=noise)

    restore()
    cold = _median(lambda: plan.project_(target), restore)
    certificates = plan.project_(target)
    restore()
    certificates = plan.project_(target)
    facts = {
        "passes": max(p.passes for p in certificates),
        "status": sorted({p.status.name for p in certificates}),
        **_errors(tensors, work, certificates, target, shared, plan.axes, weights),
    }
    restore(NOISE)
    before = plan.project_(target)
    guesses = [p.multiplier for p in before]
    warm = _median(lambda: plan.project_(target, start=guesses), restore)
    restore()
    facts["passes with start"] = max(p.passes for p in plan.project_(target, start=guesses))
    size = sum(x.nbytes for x in tensors)
    restore()
    torch.cuda.synchronize()
    began = time.perf_counter()
    plan.project_(target)
    host = time.perf_counter() - began
    copy = _median(lambda: torch._foreach_copy_(work, list(tensors)))
    return {
        "hoyer": target,
        "shared": shared,
        "bytes": size,
        "copy": copy,
        "cold": cold,
        "start": warm,
        "host": host,
        "workspace": plan.workspace / size,
        **facts,
    }


def _errors(
    tensors: Sequence[Tensor],
    answers: Sequence[Tensor],
    certificates: Sequence[Any],
    target: float,
    shared: bool,
    axes: Sequence[tuple[int, ...]],
    weights: Sequence[Tensor] | None,
) -> dict[str, float]:
    """How far answers and averages are from those of a bisection in float64."""
    groups = [range(len(tensors))] if shared else [[i] for i in range(len(tensors))]
    if sum(x.numel() for x in tensors) > 1 << 30:
        groups = groups[:1] if not shared else []  # the averages say enough of the largest set
    error = 0.0
    for members in groups:
        given = None if weights is None else [_rows(weights[i], axes[i]) for i in members]
        truth = _truth([_rows(tensors[i], axes[i]) for i in members], target, given)
        for i, want in zip(members, truth, strict=True):
            got = _rows(answers[i], axes[i]).double()
            error = max(error, float((got.abs() - want).abs().max() / want.max()))
    residuals = [abs(p.hoyer - target) for p in certificates]
    return {"error": error, "residual": max(residuals)}


def _rows(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    others = [a for a in range(x.ndim) if a not in axes]
    return x.permute(*others, *axes).reshape(-1, max(1, _product(x.shape[a] for a in axes)))


def _product(numbers: Any) -> int:
    found = 1
    for n in numbers:
        found *= n
    return found


def _truth(
    rows: Sequence[Tensor], target: float, weights: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """|z| of a group by bisection, in float64, without anything of the library."""
    # One row of ones serves all vectors where there are no weights.
    prices = [x.new_ones(1, x.shape[1]).double() for x in rows]
    if weights is not None:
        prices = [w.double() for w in weights]
    norms = [w.square().sum(1, keepdim=True).sqrt() for w in prices]
    betas = [1.0 / (n - w.amin(1, keepdim=True)) for n, w in zip(norms, prices, strict=True)]
    tops = [(n * b).expand(len(x), 1).sum() for x, n, b in zip(rows, norms, betas, strict=True)]
    level = float(sum(tops)) - target * sum(map(len, rows))

    def total(mu: float) -> float:
        found = 0.0
        for x, w, beta in zip(rows, prices, betas, strict=True):
            step = max(1, (1 << 26) // x.shape[1])
            for k in range(0, len(x), step):
                price, b = (y if len(y) == 1 else y[k : k + step] for y in (w, beta))
                d = (x[k : k + step].double().abs() - mu * b * price).clamp_(min=0.0)
                q = d.square().sum(1, keepdim=True).sqrt()
                term = torch.where(q > 0, (d * price).sum(1, keepdim=True) / q, price.amin())
                found += float((b * term).sum())
        return found

    low, high = 0.0, 1.0
    while total(high) > level:
        low, high = high, 2.0 * high
    for _ in range(52):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if total(middle) > level else (low, middle)
    answers = []
    for x, w, beta in zip(rows, prices, betas, strict=True):
        c = x.double().abs()
        d = (c - high * beta * w).clamp(min=0.0)
        corner = torch.zeros_like(c).scatter_(1, c.argmax(1, keepdim=True), 1.0)
        d = torch.where(d.amax(1, keepdim=True) > 0.0, d, corner)  # where nothing is left
        unit = d / d.square().sum(1, keepdim=True).sqrt()
        answers.append((c * unit).sum(1, keepdim=True) * unit)
    return answers


def _rivals(tensors: list[Tensor], quick: bool) -> dict[str, float]:
    """What else one could do, and other ways to call us."""
    work = [x.clone() for x in tensors]
    flat = torch.cat([x.reshape(-1) for x in tensors])
    kept = flat.numel() // 10

    def restore() -> None:
        torch._foreach_copy_(work, tensors)

    def layers() -> None:
        for x in work:
            gs.project_each_([x], 0.8)

    found = {
        "`torch.sort` of every row": _median(
            lambda: [x.reshape(len(x), -1).abs().sort() for x in tensors]
        ),
        "a global `torch.topk`": _median(lambda: flat.abs().topk(kept)),
        "`project_each_`": _median(lambda: gs.project_each_(work, 0.8), restore),
        "`project_each_`, layer by layer": _median(layers, restore),
    }
    for _ in range(2):  # the first call loads what PyTorch loads when it is first used
        restore()
        torch.cuda.synchronize()
        began = time.perf_counter()
        gs.project_each_(work, 0.8, kernel="torch")
        torch.cuda.synchronize()
        found["the eager kernel"] = time.perf_counter() - began
    return found


def report(results: dict[str, Any]) -> str:
    """Return the tables."""
    bandwidth = results["bandwidth"]
    parts = [
        f"Device: {results['device']}; a copy moves {bandwidth / 1e12:.2f} TB/s. Medians of CUDA "
        "events, data restored before each call, a reusable plan (`gs.Projector`) in place. *Cold* "
        f"has no start; *start* is the multiplier of the same values with {NOISE:.0%} of noise. "
        "*Error* is that of the largest entry against a bisection in float64, relative to the "
        "largest entry; *residual* that of the average. A row with a commit was measured at that "
        "one, in an earlier run.",
        table(_HEADINGS, [_row(case, bandwidth) for case in results["cases"]]),
        "Other shapes, hoyer 0.9:",
        table(_HEADINGS, [_row(case, bandwidth) for case in results["shapes"]]),
    ]
    for name, rivals in results["rivals"].items():
        rows = [(what, f"{1e3 * seconds:.3g}") for what, seconds in rivals.items()]
        parts += [f"Beside it, {name}, hoyer 0.8:", table(("what", "ms"), rows)]
    return "\n\n".join(parts)


_HEADINGS = (
    "tensors", "multipliers", "hoyer", "copy ms", "cold ms", "× copy", "must", "start ms", "× copy",
    "passes cold / start", "bytes / bandwidth", "workspace", "error", "residual", "of commit",
)  # fmt: skip


def _row(case: dict[str, Any], bandwidth: float) -> tuple[str, ...]:
    # Every pass reads all, the last one writes too; a sample's passes and weights are not counted.
    moved = case["bytes"] * (case["passes"] + 1) / case["cold"] / bandwidth
    return (
        case["name"],
        "one" if case["shared"] else "each its own",
        f"{case['hoyer']:g}",
        f"{1e3 * case['copy']:.3g}",
        f"{1e3 * case['cold']:.3g}",
        f"{case['cold'] / case['copy']:.2f}",
        f"{case['must']:g}" if "must" in case else "",
        f"{1e3 * case['start']:.3g}",
        f"{case['start'] / case['copy']:.2f}",
        f"{case['passes']} / {case.get('passes with start', '?')}",
        f"{moved:.0%}",
        f"{case['workspace']:.2%}",
        f"{case['error']:.0e}",
        f"{case['residual']:.0e}",
        case.get("commit", "")[:10],
    )


def main() -> None:
    """Run it alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    options = parser.parse_args()
    began = time.perf_counter()
    load = round(os.getloadavg()[0], 2)
    faulthandler.dump_traceback_later(60, exit=False)  # where it hangs, should it hang
    parameters = {"quick": options.quick, "load before": load}

    def keep(results: dict[str, Any]) -> None:
        seconds = time.perf_counter() - began
        record.save("gpu", results, seconds=seconds, seed=SEED, parameters=parameters,
                    folder=options.out)  # fmt: skip

    results = run(options.quick, keep)
    keep(results)
    print(report(results))


if __name__ == "__main__":
    main()
