"""Tensors in files, read and rewritten one at a time: .npy, .npz, .safetensors and sharded ones.

What is rewritten appears whole or not at all: it is written beside its place and moved there at
the end. Nothing here needs torch, and nothing is ever unpickled.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidInput, UnsupportedType
from .archive import Archive
from .array import ArrayFile
from .packed import PackedFile, is_packed
from .safetensors import SafetensorsFile
from .sharded import INDEX, ShardedFiles
from .stored import Change, Store, Stored

KINDS = ".npy, .npz, .safetensors, or the index (or folder) of a sharded checkpoint"


def open_store(path: str | os.PathLike[str]) -> Store:
    """The tensors of a file, whichever kind it is.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from groupsparse.storage import open_store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/two.npz", a=np.eye(3), b=np.arange(4))
    ...     [(t.name, t.shape, t.floating) for t in open_store(f"{folder}/two.npz").tensors]
    [('a', (3, 3), True), ('b', (4,), False)]
    """
    path = Path(path)
    if not path.exists():
        raise InvalidInput(f"there is no file {path}")
    if path.is_dir():
        indices = sorted(path.glob(f"*{INDEX}"))
        # A hidden one is what a command left behind that was killed.
        alone = sorted(f for f in path.glob("*.safetensors") if not f.name.startswith("."))
        if len(indices) == 1:
            return ShardedFiles(indices[0])
        if len(alone) == 1 and not indices:
            return SafetensorsFile(alone[0])
        if not indices and not alone:
            raise InvalidInput(
                f"{path} is a folder without a checkpoint: no *.safetensors, no *{INDEX}"
            )
        raise InvalidInput(
            f"{path} is a folder with {len(indices)} checkpoint indices (*{INDEX}) and "
            f"{len(alone)} safetensors files; name the one that is meant"
        )
    if path.name.endswith(INDEX):
        return ShardedFiles(path)
    match path.suffix.lower():
        case ".npy":
            return ArrayFile(path)
        case ".npz":
            return Archive(path)
        case ".safetensors":
            file = SafetensorsFile(path)
            return PackedFile(file) if is_packed(file) else file
    raise UnsupportedType(f"{path} is of a kind that is not known; expected {KINDS}")


__all__ = ["KINDS", "Change", "Store", "Stored", "open_store"]
