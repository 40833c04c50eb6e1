"""Safetensors files that are either the old one or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import InvalidInput
from ..storage.atomic import replacing_name

FORMAT = "groupsparse-1"


def write_atomically(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file that takes the place of ``path`` when all of it is on the disk."""
    with replacing_name(Path(path)) as beside:
        save_file(dict(tensors), beside, {"format": FORMAT, **metadata})


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a file that this library wrote."""
    if not Path(path).is_file():
        raise InvalidInput(f"there is no file {os.fspath(path)}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, RuntimeError) as error:
        raise InvalidInput(f"{os.fspath(path)} is no safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise InvalidInput(
            f"{os.fspath(path)} has format {metadata.get('format')!r}; expected {FORMAT!r}, "
            "as prune.save writes it"
        )
    return metadata
