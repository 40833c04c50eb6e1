"""Checkpoints to work on, and how a command ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def tensors() -> dict[str, torch.Tensor]:
    """A small model with everything that a checkpoint may hold."""
    torch.manual_seed(0)
    return {
        "embed.weight": torch.randn(50, 24).bfloat16(),
        "layer.0.weight": torch.randn(40, 24),
        "layer.0.bias": torch.randn(40),
        "layer.1.weight": 3 * torch.randn(16, 8, 3, 3).half(),
        "head.weight": torch.randn(10, 40).double(),
        "narrow.weight": torch.randn(30, 1),
        "steps": torch.arange(7),
        "scale": torch.tensor(2.0),
        "f8": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "empty": torch.zeros(0, 3),
    }


PROJECTED = ("embed.weight", "layer.0.weight", "layer.1.weight", "head.weight")


def write_shards(folder: Path) -> None:
    """Two shards and their index."""
    everything = tensors()
    names = list(everything)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    where = {name: files[i >= len(names) // 2] for i, name in enumerate(names)}
    for file in files:
        part = {name: everything[name] for name in names if where[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1234}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def damage(whole: str, damaged: str) -> None:
    """Copy a .npz file, with the values of its first array changed behind the checksum's back."""
    content = bytearray(Path(whole).read_bytes())
    content[200] ^= 255  # the array begins after its name and 128 bytes of header
    Path(damaged).write_bytes(content)
