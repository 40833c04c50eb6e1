"""ImageNet as it is unpacked: ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``, read when needed.

Augmentation is the paper's: a patch of 8 to 100 % of the image with an aspect ratio between 3/4 and
4/3, scaled to a square, flipped or not. What is drawn for an image follows from (seed, epoch,
image), so neither workers nor a restart change it. Images travel as bytes and are normalised on the
device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

SUFFIXES = {".jpeg", ".jpg", ".png"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Key = tuple[int, int]  # an image's number, and the epoch, from which its crop follows
Box = tuple[int, int, int, int]


class Folder(Dataset[tuple[Tensor, int]]):
    """Images by (number, epoch); classes are the folders' names, in order.

    ``seed`` makes crops and flips; None takes the centre, as for validation: seven eighths of the
    shorter side, which is 224 of 256.
    """

    def __init__(self, root: Path, size: int, seed: int | None = None) -> None:
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
            if path.suffix.lower() in SUFFIXES
        ]
        if not self.files:
            raise SystemExit(f"no images in {root.name}/<class>/; expected JPEG files there")
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        which, epoch = key
        path, label = self.files[which]
        with Image.open(path) as file:
            image = file.convert("RGB")
        if self.seed is None:
            box, flip = centre_box(*image.size), False
        else:
            draw = random.Random(f"{self.seed}/{epoch}/{which}")
            box, flip = random_box(*image.size, draw), draw.random() < 0.5
        square = (self.size, self.size)
        pixels = np.asarray(image.resize(square, Image.Resampling.BILINEAR, box))
        if flip:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), label


def random_box(width: int, height: int, draw: random.Random) -> Box:
    """Draw a patch of 8 to 100 % of the area; after ten that do not fit, take the largest."""
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.randint(0, width - w), draw.randint(0, height - h)
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def centre_box(width: int, height: int) -> Box:
    """Return the centred square of seven eighths of the shorter side."""
    side = round(min(width, height) * 224 / 256)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


class Shuffled(Sampler[list[Key]]):
    """The batches of one process, in a new order every epoch, from any step of it on.

    The images that do not fill a batch of every process are left out.
    """

    def __init__(self, count: int, batch: int, seed: int, rank: int, processes: int) -> None:
        self.count, self.batch, self.seed = count, batch, seed
        self.rank, self.processes = rank, processes
        self.epoch, self.first = 0, 0
        if not len(self):
            raise SystemExit(f"{count} images do not fill one batch of {batch} × {processes}")

    def __len__(self) -> int:
        return self.count // (self.batch * self.processes)

    def start_at(self, epoch: int, step: int) -> None:
        """Say which epoch comes next, and after how many of its steps."""
        self.epoch, self.first = epoch, step

    def __iter__(self) -> Iterator[list[Key]]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(self.count, generator=generator).tolist()
        for step in range(self.first, len(self)):
            start = (step * self.processes + self.rank) * self.batch
            yield [(which, self.epoch) for which in order[start : start + self.batch]]


def validation_batches(count: int, batch: int, rank: int, processes: int) -> list[list[Key]]:
    """Return which images this process checks: each image in exactly one process."""
    own = list(range(rank, count, processes))
    return [[(which, 0) for which in own[i : i + batch]] for i in range(0, len(own), batch)]


def loader(
    images: Folder, batches: Shuffled | list[list[Key]], workers: int
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return a loader whose workers, if there are any, live as long as it does."""
    return DataLoader(
        images,
        batch_sampler=batches,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


def normalised(pixels: Tensor) -> Tensor:
    """Return bytes with the mean and deviation of ImageNet's channels taken out."""
    mean, deviation = (
        torch.tensor(v, device=pixels.device).view(1, 3, 1, 1) * 255 for v in (MEAN, DEVIATION)
    )
    x = (pixels.float() - mean) / deviation
    return x.contiguous(memory_format=torch.channels_last)
