"""CIFAR-10, all of it on the device, and one network trained on it, dense or with induced GSP.

The images stay on the device as bytes; flips and crops are one gather there.

    python -m experiments.cifar --data DIR --network resnet20 --epochs 30 --hoyer 0.8
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from experiments import record
from experiments.networks import NETWORKS
from experiments.training import Trainer, stepwise
from groupsparse import prune

PAD = 4
SHEETS = ("train_1", "train_2", "train_3", "train_4", "train_5", "test")
HELD_OUT = 5000  # of the training images, for choices; the test set is for final figures


@dataclass(frozen=True)
class Images:
    """Images as bytes (N, 3, H, W) and their labels, all on one device."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Any) -> Images:
        return Images(self.pixels[which], self.labels[which])

    def to(self, device: torch.device) -> Images:
        """Move both."""
        return Images(self.pixels.to(device), self.labels.to(device))


def data_folder(given: str | None) -> Path:
    """Return the folder with the data sets: the argument, or what GROUPSPARSE_DATA says."""
    folder = given or os.environ.get("GROUPSPARSE_DATA")
    if not folder:
        raise SystemExit("where is the data? give --data DIR or set GROUPSPARSE_DATA")
    return Path(folder)


def load_cifar10(folders: Path | Sequence[Path]) -> tuple[Images, Images]:
    """Read training and test set from the lossless sheets of 100 × 100 images.

    The sheets may lie in several folders. Decoding one takes a second, so with more than two
    processors each sheet gets a process.
    """
    given = [folders] if isinstance(folders, Path) else list(folders)
    sheets = [_found(given, f"{name}.webp") for name in SHEETS]
    with np.load(_found(given, "labels.npz"), allow_pickle=False) as labels:
        train_labels, test_labels = (
            torch.from_numpy(labels[name].astype(np.int64)) for name in ("train", "test")
        )
    if (os.cpu_count() or 1) > 2:
        # Forked before anything runs on a GPU; a fresh interpreter would import torch once more.
        with ProcessPoolExecutor(len(sheets), multiprocessing.get_context("fork")) as pool:
            decoded = list(pool.map(decode_sheet, sheets))
    else:
        decoded = [decode_sheet(sheet) for sheet in sheets]
    tensors = [torch.from_numpy(sheet) for sheet in decoded]
    return Images(torch.cat(tensors[:-1]), train_labels), Images(tensors[-1], test_labels)


def decode_sheet(path: Path) -> np.ndarray:
    """Return the 10 000 images of one sheet as bytes, 10 000 × 3 × 32 × 32."""
    from PIL import Image

    with Image.open(path) as file:
        tiles = np.asarray(file.convert("RGB")).reshape(100, 32, 100, 32, 3)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3).reshape(10_000, 3, 32, 32))


def _found(folders: Sequence[Path], name: str) -> Path:
    for folder in folders:
        for path in (folder / "cifar10" / name, folder / name):
            if path.exists():
                return path
    raise SystemExit(f"no {name} in {', '.join(map(str, folders))}, nor in cifar10/ there")


def held_out(total: int, count: int = HELD_OUT) -> tuple[Tensor, Tensor]:
    """Return which images are for training and which for choices, the same ones every time."""
    order = torch.randperm(total, generator=torch.Generator().manual_seed(20220701))
    return order[count:], order[:count]


def hold_out(train: Images, count: int = HELD_OUT) -> tuple[Images, Images]:
    """Split off images for choices, the same ones every time."""
    rest, held = held_out(len(train), count)
    return train[rest], train[held]


def epoch_draws(count: int, batch: int, seed: int, number: int) -> Tensor:
    """Return image, crop (top, left) and flip of every row of every batch: steps × 4 × batch.

    The last images of the shuffled set, fewer than a batch, are left out.
    """
    generator = torch.Generator().manual_seed(seed * 100_003 + number)
    draws = torch.stack(
        [
            torch.randperm(count, generator=generator),
            torch.randint(0, 2 * PAD + 1, (count,), generator=generator),
            torch.randint(0, 2 * PAD + 1, (count,), generator=generator),
            torch.randint(0, 2, (count,), generator=generator),
        ]
    )
    steps = count // batch
    return draws[:, : steps * batch].view(4, steps, batch).transpose(0, 1).contiguous()


class Loader:
    """Batches with random flips and crops, made on the device.

    All draws of an epoch follow from (seed, epoch), so a resumed run needs no generator state.
    """

    def __init__(self, images: Images, checked: Images, batch: int, seed: int) -> None:
        self.images, self.checked, self.batch, self.seed = images, checked, batch, seed
        self.device = images.pixels.device
        self.padded = pad(images.pixels, (PAD,) * 4)
        self.size = images.pixels.shape[-1]
        scaled = images.pixels[:10_000].float() / 255.0
        self.mean = scaled.mean(dim=(0, 2, 3)).view(1, 3, 1, 1)
        self.deviation = scaled.std(dim=(0, 2, 3)).view(1, 3, 1, 1)

    def __len__(self) -> int:
        return len(self.images) // self.batch

    def epoch(self, number: int) -> Iterator[Tensor]:
        """Yield for each step what `make` needs: image, crop and flip of every row of the batch."""
        draws = epoch_draws(len(self.images), self.batch, self.seed, number)
        yield from draws.to(self.device)

    def make(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised images and labels: one gather, without a copy of the whole image."""
        which, top, left, flip = draw
        line = torch.arange(self.size, device=draw.device)
        rows = top[:, None] + line
        columns = left[:, None] + torch.where(flip[:, None] == 1, self.size - 1 - line, line)
        channels = torch.arange(3, device=draw.device)[None, :, None, None]
        pixels = self.padded[
            which[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None, :]
        ]
        return self.normalised(pixels), self.images.labels[which]

    def check(self, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images that accuracy is measured on, as they are."""
        for first in range(0, len(self.checked), batch):
            part = self.checked[first : first + batch]
            yield self.normalised(part.pixels), part.labels

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return bytes as numbers of mean 0 and deviation 1 per channel."""
        return (pixels.float() / 255.0 - self.mean) / self.deviation


def main() -> None:
    """Train one network, dense or with induced GSP, and leave a record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.cifar", description=__doc__)
    parser.add_argument("--data", help="folder with cifar10/ (default: GROUPSPARSE_DATA)")
    parser.add_argument("--network", default="vgg16", choices=sorted(NETWORKS))
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--hoyer", type=float, help="target of induced GSP; dense without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="cifar", help="of the record and the checkpoint")
    parser.add_argument("--final", action="store_true", help="all images for training; test set")
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    torch.manual_seed(options.seed)
    train, test = load_cifar10(data_folder(options.data))
    train, check = (train, test) if options.final else hold_out(train)
    model = NETWORKS[options.network]().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), options.rate, momentum=0.9, weight_decay=5e-4, fused=on_gpu
    )
    loader = Loader(train.to(device), check.to(device), options.batch, options.seed)
    attached = {}
    if options.hoyer is not None:
        attached["inducer"] = prune.Inducer(
            model,
            prune.Plan(options.hoyer),
            optimizer,
            start=len(loader) * options.epochs // 5,
            stop=len(loader) * options.epochs * 7 // 10,
            schedule=prune.cubic(),
        )
    milestones = [options.epochs * share // 10 for share in (4, 6, 8)]
    trainer = Trainer(
        model,
        optimizer,
        loader,
        stepwise(options.rate, milestones),
        precision=torch.bfloat16 if on_gpu else None,
        graph=on_gpu,
        attached=attached,
    )
    began = time.perf_counter()
    checkpoint = record.ROOT / "build" / "checkpoints" / f"{options.name}.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    trainer.run(options.epochs, checkpoint)
    last = [point["accuracy"] for point in trainer.curve[-3:]]
    results = {
        "accuracy": sum(last) / len(last),
        "curve": trainer.curve,
        "layers": prune.report(model).as_dict(),
    }
    seconds = time.perf_counter() - began
    settings = {name: value for name, value in vars(options).items() if name != "data"}
    record.save(options.name, results, seconds=seconds, seed=options.seed, parameters=settings)
    print(prune.report(model))
    print(f"accuracy {results['accuracy']:.2f} % (mean of the last {len(last)} epochs)")


if __name__ == "__main__":
    main()
