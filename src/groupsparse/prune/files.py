"""Safetensors files that are either the old one or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import InvalidInput

FORMAT = "groupsparse-1"


def write_atomically(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str], metadata: Mapping[str, str]
) -> None:
    """Write beside the path, bring it to the disk, and only then put it in the old one's place."""
    final = Path(path)
    beside = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        save_file(dict(tensors), beside, {"format": FORMAT, **metadata})
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(final)
    finally:
        beside.unlink(missing_ok=True)


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
