"""What pruning costs beside training, and where compressed linear layers are faster.

On a machine with a GPU the same cases run there, which is where the targets are set; what was
measured on which machine stands above the table.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import Contender, side_by_side
from experiments.networks import resnet50, vgg16
from experiments.tables import table
from groupsparse import prune
from groupsparse.prune.sparse import CSRLinear


def run(quick: bool) -> dict[str, Any]:
    """Time training steps with and without projection, the cut, files and compressed layers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    # These networks are not trained, and nobody uses what is left of them.
    warnings.simplefilter("ignore", prune.LayerCollapse)
    return {
        "device": device.type,
        "threads": torch.get_num_threads(),
        "induced": _induced(device, quick),
        "cut": _cut(device, quick),
        "files": _files(quick),
        "compressed": _compressed(quick),
    }


def report(results: dict[str, Any]) -> str:
    """Return the tables."""
    induced, cut = results["induced"], results["cut"]
    step = induced["step"]
    parts = [
        f"Device: {results['device']}, {results['threads']} threads.",
        f"Induced GSP, {induced['network']}, {induced['parameters']:,} parameters, batch "
        f"{induced['batch']}: one training step takes {_ms(step)}.",
        table(
            ("projection", "one", "every step", "every 150 steps"),
            [
                (name, _ms(t), f"{t / step:.1%}", f"{t / step / 150:.2%}")
                for name, t in induced["projections"].items()
            ],
        ),
        *_holding(induced),
        f"Cutting {cut['parameters']:,} parameters to 90 % zeros (the whole model at once).",
        table(
            ("method", "time", "ratio to prune.cut"),
            [
                (name, _ms(t), f"{t / cut['times']['prune.cut']:.2f}")
                for name, t in cut["times"].items()
            ],
        ),
        f"What stays: masks of {8 * cut['mask_bytes'] / cut['parameters']:.2f} bits per parameter.",
        _memory("one projection (per layer)", induced["memory"]),
        _memory("the cut", cut["memory"]),
        "Files of the CIFAR VGG-16 (float32), `prune.save`.",
        table(
            ("zeros", "share of the dense file", "save", "load"),
            [
                (
                    f"{row['sparsity']:.0%}",
                    f"{row['share']:.2%}",
                    _ms(row["save"]),
                    _ms(row["load"]),
                )
                for row in results["files"]
            ],
        ),
        "Linear layers on the CPU, dense over compressed time: above 1 the compressed one wins.",
        table(
            ("size", "batch", *(f"{s:.0%} zeros" for s in results["compressed"]["sparsities"])),
            [
                (
                    f"{row['size']} × {row['size']}",
                    row["batch"],
                    *(f"{r:.2f}" for r in row["ratios"]),
                )
                for row in results["compressed"]["rows"]
            ],
        ),
    ]
    return "\n\n".join(parts)


def _holding(induced: dict[str, Any]) -> list[str]:
    """What frozen masks cost; records of before this was measured say nothing of it."""
    if "held" not in induced:
        return []
    more = induced["held"]["held"] - induced["held"]["free"]
    share = more / induced["step"]
    return [f"Holding 90 % zeros in training: {_ms(more)} a step, {share:.1%} of a training step."]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _induced(device: torch.device, quick: bool) -> dict[str, Any]:
    """A training step of ResNet-50 (quick: VGG-16), and one projection of all of its layers."""
    model = (vgg16() if quick else resnet50()).to(device)
    batch, side, classes = (8, 32, 10) if quick else (4 if device.type == "cpu" else 128, 224, 1000)
    x = torch.randn(batch, 3, side, side, device=device)
    y = torch.randint(0, classes, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        _wait(device)

    inducers = {
        "whole model, warm": prune.Inducer(model, prune.Plan(0.8)),
        "per layer, warm": prune.Inducer(model, prune.Plan.paper(0.8)),
    }
    contenders: dict[str, Any] = {"step": step}
    for name, inducer in inducers.items():
        # Training moves every parameter between two projections; noise of a step's size does here.
        contenders[name] = Contender(_projecting(inducer, device), _moving(model))
    times = side_by_side(contenders, budget=2.0 if quick else 60.0, least=3, most=30)
    return {
        "network": "VGG-16" if quick else "ResNet-50",
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch": batch,
        "step": times.pop("step"),
        "projections": times,
        "memory": _beyond(device, _projecting(inducers["per layer, warm"], device), model),
        "held": _held(model, optimizer, device),  # the last: it cuts the model
    }


def _held(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> dict[str, float]:
    """The optimizer's step alone, free and with 90 % of the entries held at zero."""

    def step() -> None:
        optimizer.step()
        _wait(device)

    masks = prune.cut(model, sparsity=0.9)
    free = Contender(step, masks.remove)
    held = Contender(step, lambda: masks.frozen(model, optimizer))
    return side_by_side({"free": free, "held": held}, budget=5.0, least=5, most=30)


def _projecting(inducer: prune.Inducer, device: torch.device) -> Callable[[], None]:
    def call() -> None:
        inducer.project()
        _wait(device)

    return call


def _moving(model: nn.Module) -> Callable[[], None]:
    start = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def call() -> None:
        for parameter, value in zip(model.parameters(), start, strict=True):
            parameter.copy_(value)
            parameter.add_(torch.randn_like(value), alpha=1e-3)

    return call


def _cut(device: torch.device, quick: bool) -> dict[str, Any]:
    """`prune.cut` beside sorting everything and beside torch's own global pruning."""
    from torch.nn.utils import prune as torch_prune

    original = (vgg16() if quick else resnet50()).to(device)
    targets = prune.select(original, ("Conv2d", "Linear"))
    k = round(0.9 * sum(t.parameter.numel() for t in targets))
    holder: dict[str, Any] = {}

    def fresh() -> None:
        holder["model"] = copy.deepcopy(original)
        _wait(device)

    def ours() -> None:
        holder["masks"] = prune.cut(holder["model"], sparsity=0.9)
        _wait(device)

    def kth_value() -> None:
        found = prune.select(holder["model"], ("Conv2d", "Linear"))
        together = torch.cat([t.parameter.detach().abs().flatten() for t in found])
        threshold = together.kthvalue(k).values
        for target in found:
            target.parameter.detach().masked_fill_(target.parameter.detach().abs() <= threshold, 0)
        _wait(device)

    def torchs_own() -> None:
        modules = [
            (m, "weight") for m in holder["model"].modules() if isinstance(m, nn.Conv2d | nn.Linear)
        ]
        torch_prune.global_unstructured(modules, torch_prune.L1Unstructured, amount=k)
        _wait(device)

    fresh()
    memory = _beyond(device, ours, original)
    mask_bytes = sum(mask.bits.nbytes for mask in holder["masks"].packed.values())
    times = side_by_side(
        {
            "prune.cut": Contender(ours, fresh),
            "torch.cat, kthvalue, masked_fill": Contender(kth_value, fresh),
            "torch.nn.utils.prune.global_unstructured": Contender(torchs_own, fresh),
        },
        budget=2.0 if quick else 30.0,
        least=3,
        most=20,
    )
    return {
        "parameters": sum(t.parameter.numel() for t in targets),
        "times": times,
        "mask_bytes": mask_bytes,
        "memory": memory,
    }


def _beyond(device: torch.device, call: Callable[[], None], model: nn.Module) -> float | None:
    """The most memory that a call takes, as a share of the model; only a GPU can tell."""
    if device.type != "cuda":
        call()
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    size = sum(parameter.nbytes for parameter in model.parameters())
    return (torch.cuda.max_memory_allocated() - before) / size


def _memory(what: str, share: float | None) -> str:
    told = "not measured on a CPU" if share is None else f"{share:.1%} of the model"
    return f"Memory that {what} takes for a moment: {told}."


def _files(quick: bool) -> list[dict[str, float]]:
    """Size and speed of `prune.save` and `prune.load`."""
    import tempfile
    from pathlib import Path

    rows = []
    for sparsity in (0.9,) if quick else (0.0, 0.5, 0.9, 0.95, 0.99):
        model = vgg16()
        prune.cut(model, sparsity=sparsity)
        dense = sum(t.nbytes for t in model.state_dict().values())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            times = side_by_side(
                {
                    "save": lambda m=model, p=path: prune.save(m, p),
                    "load": lambda m=model, p=path: prune.load(m, p),
                },
                budget=1.0,
                least=3,
                most=10,
            )
            share = path.stat().st_size / dense
        rows.append({"sparsity": sparsity, "share": share, **times})
    return rows


def _compressed(quick: bool) -> dict[str, Any]:
    """Dense Linear against CSR, per size, batch and fraction of zeros."""
    sparsities = (0.5, 0.8, 0.9, 0.95, 0.98)
    rows = []
    for size in (256,) if quick else (256, 1024, 4096):
        for batch in (1, 16, 128):
            ratios = []
            for sparsity in sparsities:
                dense = nn.Linear(size, size)
                prune.cut(dense, sparsity=sparsity)
                compressed, x = CSRLinear(dense), torch.randn(batch, size)
                with torch.inference_mode():
                    times = side_by_side(
                        {
                            "dense": lambda d=dense, x=x: d(x),
                            "compressed": lambda c=compressed, x=x: c(x),
                        },
                        budget=0.2 if quick else 0.6,
                        least=7,
                    )
                ratios.append(times["dense"] / times["compressed"])
            rows.append({"size": size, "batch": batch, "ratios": ratios})
    return {"sparsities": list(sparsities), "rows": rows}
