"""Sparse NMF on a GPU: seconds per iteration beside its two dense products, and beside the CPU.

``python -m benchmarks.nmf_gpu --data FOLDER`` runs it alone, in less than a minute, and leaves its
record beside those of the other benchmarks, or in the folder after ``--out``. Without the real
data, random data of its shape stands in.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import nmf_common as common
from experiments import record
from experiments.tables import table
from groupsparse.nmf import GroupSparseNMF, sweeps_tensor

RECORDS = Path(__file__).resolve().parent / "records"
NEEDS_CUDA = True  # `python -m benchmarks` leaves it out elsewhere
SEED = 0
FACES = {"shape": (2429, 361), "rank": 49, "target": 0.85}
LARGE = {"shape": (100_000, 10_000), "rank": 100, "target": 0.7}
# What one H200 promises: float32 without tensor cores, and memory.
PEAK_FLOPS, PEAK_BYTES = 67e12, 4.8e12
CPU_SECONDS = 5.0  # after which it stops, for a few iterations of the large problem
AGREE = 1e-5


def run(quick: bool, device: str = "cuda") -> dict[str, Any]:
    """Check the sweeps, compare results with NumPy, then time both problems."""
    broken = _check_kernel(device)
    folder = os.environ.get("GROUPSPARSE_DATA")
    faces = common.cbcl(Path(folder)) if folder else np.random.default_rng(0).random(FACES["shape"])
    n, m = LARGE["shape"]
    shape = (n // 50, m // 20) if quick else (n, m)
    return {
        "data": "CBCL" if folder else "random, of the shape of CBCL",
        "kernel": broken or "ran",
        "agreement": _agreement(faces, device),
        "faces": [_faces(faces, kind, device, quick) for kind in (np.float64, np.float32)],
        "large": _large(shape, device),
    }


def _check_kernel(device: str) -> str | None:
    """Compare the kernel with the sweeps by rows; where it fails, go on without it and say so."""
    if device != "cuda":
        return "none on this device"
    try:
        tile = torch.rand(100, 1000, device=device)
        other = torch.rand(100, 300, device=device)
        ones = tile.new_ones(100)
        system = sweeps_tensor.system_of(
            other @ torch.rand(300, 1000, device=device), other @ other.T, 0 * ones, ones, None
        )
        rows = tile.clone()
        sweeps_tensor._sweeper(tile)(tile, system, 2, None)
        sweeps_tensor.sweep_by_rows(rows, system, 2, None)
        off = float((tile - rows).norm() / rows.norm())
        return None if off < 1e-3 else f"wrong by {off:.1e}"
    except Exception:
        traceback.print_exc()
        sweeps_tensor._triton_kernel = lambda: None
        return "failed to run; sweeps by rows instead"


def _agreement(x: np.ndarray, device: str) -> dict[str, float]:
    """How far 20 iterations on the device end from NumPy's.

    They start from a factorisation of some quality: between a random start and its first
    factorisation under a target the last digit of the data decides where the search goes.
    """
    found = {}
    there = torch.from_numpy(x).to(device)
    for name, target in (("no target", None), ("target", FACES["target"])):
        start = _fitted(x, common.uniform_start(x, FACES["rank"], SEED), target, 100)[1:]
        here, codes, parts = _fitted(x, start, target, 20)
        moved, moved_codes, moved_parts = _fitted(there, start, target, 20)
        found[f"error, {name}"] = float(abs(here.loss_curve_ - moved.loss_curve_).max())
        found[f"parts, {name}"] = _distance(moved_parts, parts)
        found[f"codes, {name}"] = _distance(moved_codes, codes)
    return found


def _distance(tensor: torch.Tensor, array: np.ndarray) -> float:
    return float(np.linalg.norm(tensor.cpu().numpy() - array) / np.linalg.norm(array))


def _faces(x: np.ndarray, kind: Any, device: str, quick: bool) -> dict[str, Any]:
    x = np.ascontiguousarray(x, kind)
    start = tuple(f.astype(kind) for f in common.uniform_start(x, FACES["rank"], SEED))
    there = torch.from_numpy(x).to(device)
    iterations = 60 if quick else 120  # the second half of them is timed
    result: dict[str, Any] = {"dtype": np.dtype(kind).name}
    w, h = (torch.from_numpy(f).to(device) for f in start)
    result["two products"] = _products(there, w.T.contiguous(), h)
    for name, target in (("no target", None), ("target", FACES["target"])):
        for place, data in (("gpu", there), ("cpu", x)):
            model = _fitted(data, start, target, iterations)[0]
            result[f"{name}, {place}"] = _median(model)
            result[f"{name}, {place}, error %"] = 100 * float(model.loss_curve_[-1])
    return result


def _large(shape: tuple[int, int], device: str) -> dict[str, Any]:
    """A sparse factorisation plus noise, made where it is used."""
    (n, m), r = shape, LARGE["rank"]
    random = torch.Generator(device).manual_seed(SEED)

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(*size, generator=random, device=device)

    parts = uniform(r, m) * (uniform(r, m) < 0.2)
    x = (uniform(n, r) * (uniform(n, r) < 0.5)) @ parts
    x += 0.05 * float(x.mean()) * uniform(n, m)
    w, h = uniform(n, r), uniform(r, m)
    w *= float(x.mean()) / float((w[:1000] @ h).mean())
    result: dict[str, Any] = {"shape": [n, m], "rank": r}
    result["two products"] = _products(x, w.T.contiguous(), h)
    result["flops"], result["bytes"] = 4 * n * m * r, 2 * 4 * n * m
    result["floor"] = max(result["flops"] / PEAK_FLOPS, result["bytes"] / PEAK_BYTES)
    starts = {}
    for name, target in (("no target", None), ("target", LARGE["target"])):
        model, *starts[name] = _fitted(x, (w, h), target, 60)
        result[f"{name}, gpu"] = _median(model)
        result[f"{name}, gpu, error %"] = 100 * float(model.loss_curve_[-1])
    if device == "cuda":
        result["GPU memory GiB"] = torch.cuda.max_memory_allocated() / 2**30
    on_cpu = x.cpu().numpy()
    differences = {}
    for name, start in starts.items():
        target = None if name == "no target" else LARGE["target"]
        here = [factor.cpu().numpy() for factor in start]
        model = _fitted(on_cpu, here, target, 4, CPU_SECONDS)[0]
        result[f"{name}, cpu"] = _median(model)
        again = _fitted(x, start, target, model.n_iter_)[0]
        differences[name] = float(abs(again.loss_curve_ - model.loss_curve_).max())
    result["error, largest difference"] = differences
    return result


def _fitted(
    data: Any, start: Any, target: float | None, iterations: int, limit: float | None = None
) -> tuple[Any, Any, Any]:
    """A model, its codes and its parts."""
    model = GroupSparseNMF(
        start[1].shape[0],
        init="custom",
        hoyer_H=target,
        max_iter=iterations,
        max_time=limit,
        tol=0,
        random_state=SEED,
    )
    codes = model.fit_transform(data, W=start[0], H=start[1])
    return model, codes, model.components_


def _median(model: Any) -> float:
    """Of the second half: by then everything is compiled and the target is switched on.

    The host reads the error at the end of every iteration, so nothing is left in a queue.
    """
    steps = np.diff(model.time_curve_)
    return float(np.median(steps[len(steps) // 2 :])) if len(steps) else model.time_curve_[0]


def _products(x: torch.Tensor, w: torch.Tensor, h: torch.Tensor) -> float:
    """Seconds of H Xᵀ and W X."""
    times = []
    for _ in range(7):
        _wait(x)
        began = time.perf_counter()
        _ = h @ x.T, w @ x
        _wait(x)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def report(results: dict[str, Any]) -> str:
    """Return the tables."""
    large = results["large"]
    problems = [(f"CBCL, {faces['dtype']}", faces) for faces in results["faces"]]
    problems.append((f"{large['shape'][0]} × {large['shape'][1]}, float32", large))
    rows = [
        [
            f"{problem}, {name}",
            f"{1e3 * found['two products']:.2f}",
            f"{1e3 * found[f'{name}, gpu']:.2f}",
            f"{found[f'{name}, gpu'] / found['two products']:.1f}",
            f"{1e3 * found[f'{name}, cpu']:.1f}",
            f"{found[f'{name}, cpu'] / found[f'{name}, gpu']:.1f}",
        ]
        for problem, found in problems
        for name in ("no target", "target")
    ]
    columns = ["one iteration, ms", "two products, GPU", "GPU", "per products", "CPU", "CPU/GPU"]
    differences = {**results["agreement"]}
    for name, value in large["error, largest difference"].items():
        differences[f"error, large, float32, {name}"] = value
    agree = all(value <= AGREE for value in differences.values())
    return "\n\n".join(
        [
            f"Data: {results['data']}. Kernel of the sweeps: {results['kernel']}.",
            table(columns, rows),
            f"Floor of the large problem's products: {1e3 * large['floor']:.2f} ms "
            f"({large['flops']:.1e} flops, {large['bytes']:.1e} bytes, at the H200's speeds).",
            table(
                ["GPU against NumPy, same start", "relative difference"],
                [[name, f"{value:.1e}"] for name, value in differences.items()],
            ),
            f"All of them {'at most' if agree else 'NOT ALL BELOW'} {AGREE:.0e}.",
        ]
    )


def main() -> None:
    """Run alone, for a machine that is only borrowed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nmf_gpu", description=__doc__)
    parser.add_argument("--data", help="folder with the real data (default: GROUPSPARSE_DATA)")
    parser.add_argument("--out", type=Path, default=RECORDS, help="folder for the record")
    parser.add_argument("--device", default="cuda", help="cpu: only to try the script")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    if options.data:
        os.environ["GROUPSPARSE_DATA"] = options.data
    load = round(os.getloadavg()[0], 2)
    began = time.perf_counter()
    results = run(options.quick, options.device)
    seconds = time.perf_counter() - began
    print(report(results), flush=True)
    print(f"{seconds:.0f} s")
    if options.device == "cuda" and not options.quick:
        parameters = {"quick": options.quick, "load before": load}
        path = record.save(
            "nmf_gpu",
            results,
            seconds=seconds,
            seed=SEED,
            parameters=parameters,
            folder=options.out,
        )
        print(f"record: {path.name}")


if __name__ == "__main__":
    main()
