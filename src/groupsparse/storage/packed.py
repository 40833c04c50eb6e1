"""What ``prune.save`` wrote, seen as the tensors that it stands for; to look at, not to rewrite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .safetensors import SafetensorsFile
from .stored import FLOATS, Change, Stored, decoded

NAMES = {"torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float32": "F32"} | {
    "torch.float64": "F64"
}


def is_packed(file: SafetensorsFile) -> bool:
    """Whether ``prune.save`` wrote it."""
    metadata = file.metadata
    return metadata.get("format") == "groupsparse-1" and metadata.get("kind") == "model"


class PackedFile:
    """See :class:`groupsparse.storage.Store`."""

    def __init__(self, file: SafetensorsFile) -> None:
        self.path = file.path
        self.file = file
        self.stored = {tensor.name: tensor for tensor in file.tensors}
        try:
            entries = json.loads(file.metadata["tensors"])
            self.tensors = [self._tensor(name, entry) for name, entry in entries.items()]
            self.packed = {name for name, entry in entries.items() if entry["packed"]}
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{self.path} is damaged: its list of tensors is") from error

    def _tensor(self, name: str, entry: Mapping[str, Any]) -> Stored:
        dtype, shape = NAMES.get(entry["dtype"]), tuple(entry["shape"])
        return self.stored[name] if dtype is None else Stored(name, dtype, shape)

    def read(self, tensor: Stored) -> NDArray[Any]:
        if tensor.name not in self.packed:
            return self.file.read(self.stored[tensor.name])
        bits = self.file.bytes_of(self.stored[f"{tensor.name}:bits"])
        values = self.file.bytes_of(self.stored[f"{tensor.name}:values"])
        kept = np.unpackbits(bits, count=tensor.size, bitorder="little").view(bool)
        dense = np.zeros(tensor.size, FLOATS[tensor.dtype])
        if np.count_nonzero(kept) * dense.itemsize != values.size:
            raise InvalidInput(f"{self.path} is damaged: mask and values of {tensor.name} differ")
        dense[kept] = values.view(dense.dtype)
        return decoded(dense.view(np.uint8), tensor)

    def rewrite(self, out: Path, changes: Mapping[str, Change]) -> None:
        raise InvalidInput(
            f"{self.path} is packed, as prune.save writes it; groupsparse.prune.to_dense makes an "
            "ordinary safetensors file of it"
        )
