"""What a GPU can do, in seconds: how long an epoch takes, and whether every method runs there.

    python -m experiments.probe --batches 256 512 --seconds 40

The images are made up, so no data is needed. With ``--data`` one sheet is decoded, to see that it
can be. What took long and what went wrong is printed, and nothing else is left behind.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from experiments.candidates import EVERYTHING, dense, jobs_of
from experiments.cifar import Images, decode_sheet
from experiments.fleet import Fleet, measure
from experiments.jobs import Job, Journal, Setting
from experiments.slot import Data, Settings


def images(count: int, seed: int = 0) -> Images:
    """Random images; the label moves their mean."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    pixels = torch.randint(0, 156, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    pixels += (10 * labels).to(torch.uint8)[:, None, None, None]
    return Images(pixels, labels)


def every_method(network: str, batch: int, labels: Iterable[str]) -> list[Job]:
    """One short run of each method: two epochs, then three."""
    setting = Setting("probe", network, 2, 3, batch)
    found = dense(setting, 0)
    for label in labels:
        candidate = EVERYTHING[label]
        # Often enough to happen at all within two epochs.
        often = replace(candidate, method=replace(candidate.method, every=2))
        found += jobs_of(setting, label, (0.9,), 0, candidate=often)
    return list({job.name: job for job in found}.values())


def tried(
    network: str, batch: int, device: torch.device, seconds: float, count: int, fused: bool = True
) -> bool:
    """Whether every method runs through; those that do not are named."""
    began = time.monotonic()
    data = Data(images(count), images(count // 2, 1), device, held=count // 10)
    settings = Settings(batch=batch, smoothing=0.1, fused=fused)
    fleet = Fleet(data, settings, {network: 3}, began + seconds)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), networks=False)
        jobs = every_method(network, batch, EVERYTHING)
        schedule = fleet.run(jobs, journal)
        print(f"{network}: tried in {time.monotonic() - began:.1f} s", flush=True)
        slowest = sorted(journal.done.values(), key=lambda line: -line["seconds"])[:8]
        for line in slowest:
            print(f"  {line['seconds']:6.2f} s {line['job']['label']} {line['job']['cut']}")
        leaves = [line for line in journal.done.values() if line["job"]["level"]]
        wrong = [line["name"] for line in leaves if not 0.85 < line["sparsity"] < 0.95]
        left = [job.name for job in jobs if job.name not in schedule.finished]
        lost = [line["name"] for line in leaves if line["losses"][-1] != line["losses"][-1]]
    for what, names in (("failed", schedule.failed), ("not finished", left), ("NaN", lost)):
        if names:
            print(f"  {len(names)} {what}: {sorted(names)[:5]}", flush=True)
    if wrong:
        print(f"  other zeros than asked for: {wrong}", flush=True)
    return not (left or wrong)


def speed(
    network: str, batch: int, slots: int, device: torch.device, data: Data, fused: bool = True
) -> None:
    """Print the seconds of an epoch, alone and side by side."""
    began = time.monotonic()
    fleet = Fleet(data, Settings(batch=batch, smoothing=0.1, fused=fused), {network: slots})
    ready = time.monotonic() - began
    found = measure(fleet, network)
    graphs = all(slot.recorded for slot in fleet.slots)
    kernels = all(slot.fused for slot in fleet.slots)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    print(
        f"{network}, batch {batch}: alone {found['alone']:.3f} s an epoch, {slots} side by side "
        f"{found['side by side']:.3f} s each; ready in {ready:.1f} s, graphs: {graphs}, "
        f"fused: {kernels}, {memory:.1f} GiB",
        flush=True,
    )


def main() -> None:
    """Measure, then try."""
    parser = argparse.ArgumentParser(prog="python -m experiments.probe", description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["vgg16", "resnet56"])
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--slots", type=int, nargs="+", default=[7])
    parser.add_argument("--seconds", type=float, default=40.0, help="for each network's methods")
    parser.add_argument("--try", dest="attempt", nargs="*", default=["vgg16"])
    parser.add_argument("--count", type=int, default=50_000, help="made-up training images")
    parser.add_argument("--few", type=int, default=2560, help="images that methods are tried on")
    parser.add_argument("--data", type=Path, help="folder with a sheet of CIFAR-10")
    parser.add_argument("--plain", action="store_true", help="PyTorch's own kernels throughout")
    options = parser.parse_args()
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.data is not None:
        sheet = next(iter(sorted(options.data.glob("train_*.webp"))))
        shape = decode_sheet(sheet).shape
        print(f"{sheet.name}: {shape}, {time.monotonic() - began:.1f} s", flush=True)
    torch.set_num_threads(1)
    fine = [
        tried(network, options.batches[0], device, options.seconds, options.few, not options.plain)
        for network in options.attempt
    ]
    data = Data(images(options.count), images(10_000, 1), device, held=options.count // 10)
    for network in options.networks:
        for batch in options.batches:
            for slots in options.slots:
                speed(network, batch, slots, device, data, not options.plain)
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    print(f"{time.monotonic() - began:.1f} s in all; methods fine: {fine}", flush=True)


if __name__ == "__main__":
    main()
