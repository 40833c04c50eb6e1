"""The two small sets of ImageNet images: decoded once, kept on the device as bytes.

``imagenet/val1300.npz`` and ``imagenet/train1000.npz`` hold JPEG files end to end in ``blob``, cut
at ``offsets``. The pretrained network takes BGR minus means, 224 × 224.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.cifar import Images

SIZE = 224
MEANS = (103.939, 116.779, 123.68)  # blue, green, red
_means: dict[torch.device, Tensor] = {}


def find(folders: Iterable[Path], name: str) -> Path:
    """Return ``imagenet/name`` (or ``name``) in the first of the folders that has it."""
    tried = [folder / part / name for folder in folders for part in ("imagenet", ".")]
    for path in tried:
        if path.exists():
            return path
    raise SystemExit(f"{name} is in none of {', '.join(str(path.parent) for path in tried)}")


def load_images(path: Path, first: int | None = None) -> Images:
    """Decode all images of a file, or its first ones; side by side, Pillow lets go of the lock."""
    from PIL import Image

    with np.load(path, allow_pickle=False) as file:
        blob, offsets, labels = file["blob"], file["offsets"], file["labels"].astype(np.int64)
    count = len(labels) if first is None else first

    def decode(which: int) -> np.ndarray:
        jpeg = blob[offsets[which] : offsets[which + 1]].tobytes()
        with Image.open(io.BytesIO(jpeg)) as image:
            return np.asarray(image.convert("RGB"))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pixels = np.stack(list(pool.map(decode, range(count))))
    # N × 3 × H × W in shape, pixel by pixel in memory, as the convolutions want it.
    return Images(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels[:count]))


def network_input(pixels: Tensor) -> Tensor:
    """Return bytes in RGB as what the pretrained network was trained on."""
    means = _means.get(pixels.device)
    if means is None:  # once: a copy from the host cannot be part of a CUDA graph
        means = torch.tensor(MEANS, device=pixels.device).view(1, 3, 1, 1)
        _means[pixels.device] = means
    x = pixels.flip(1).float() - means
    return x.contiguous(memory_format=torch.channels_last)


def centre(pixels: Tensor) -> Tensor:
    """Return the middle 224 × 224 pixels."""
    top, left = ((side - SIZE) // 2 for side in pixels.shape[-2:])
    return pixels[..., top : top + SIZE, left : left + SIZE]


def random_views(images: Images, batch: int, seed: int, epoch: int) -> list[Tensor]:
    """Return the batches of one epoch as bytes: each image once, cropped at random, or mirrored.

    They follow from (seed, epoch). The last images, fewer than a batch, are left out.
    """
    count, side = len(images), images.pixels.shape[-1]
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order = torch.randperm(count, generator=generator).tolist()
    corners = torch.randint(0, side - SIZE + 1, (count, 2), generator=generator).tolist()
    flips = torch.randint(0, 2, (count,), generator=generator).tolist()
    views = []
    for which, (top, left), flip in zip(order, corners, flips, strict=True):
        view = images.pixels[which, :, top : top + SIZE, left : left + SIZE]
        views.append(view.flip(2) if flip else view)
    last = count - batch + 1
    return [torch.stack(views[first : first + batch]) for first in range(0, last, batch)]
