"""Pruned models on disk: a bit per entry for where the zeros are, and the values that survived.

The file is safetensors. A tensor for which it saves room is stored as two: ``name:bits``, the mask
at one bit per entry, and ``name:values``, the entries that are not zero, in row-major order. All
others are stored as they are. Only +0.0 counts as zero: everything else, −0.0 and NaN payloads
included, comes back bit for bit. There is no pickle anywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import InvalidInput
from .files import read_metadata, write_atomically
from .packing import BIT_PATTERN, PackedMask
from .sharding import gather, is_sharded, scatter_
from .targets import bare, clean_name

_KIND = "model"


@torch.no_grad()
def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model's parameters and buffers, its zeros at one bit each.

    The file appears whole or not at all. Of a sharded model (FSDP2) every process must call this;
    the first one writes.

    Parameters
    ----------
    model : torch.nn.Module
        Any model; wrappers (compiled, DDP) are looked through, so that names are those of the bare
        model.
    path : str or path
        A safetensors file; replaced if it exists.

    Examples
    --------
    >>> import os, tempfile, torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Linear(400, 100)
    >>> masks = prune.cut(model, sparsity=0.95)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     prune.save(model, f"{folder}/small.safetensors")
    ...     size = os.path.getsize(f"{folder}/small.safetensors")
    >>> size < 0.09 * 4 * 100 * 401
    True
    """
    state = _tensors(model)
    for name, tensor in state.items():
        if tensor.is_meta:
            raise InvalidInput(f"{name} is on the meta device; load its values first")
    sharded = any(map(is_sharded, state.values()))
    writes = not sharded or dist.get_rank() == 0
    index = _Index({}, {})
    stored: dict[str, Tensor] = {}
    names: dict[object, str] = {}
    for name, tensor in state.items():
        first = names.setdefault(_memory(name, tensor), name)
        if first != name:
            index.aliases[name] = first
            continue
        whole = gather(tensor)  # one tensor at a time, in every process
        if writes:
            stored |= index.add(name, whole)
    try:
        if writes:
            write_atomically(stored, path, index.as_metadata())
    finally:
        if sharded:
            dist.barrier()  # nobody may read before the file is there


@torch.no_grad()
def load(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Read what `save` wrote into a model of the same architecture; bit-identical.

    Names, shapes and dtypes are compared before anything is written; a file for another model is
    an error and leaves the model untouched.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place. Sharded parameters take their own part.
    path : str or path
        A file that `save` wrote.

    Returns
    -------
    torch.nn.Module
        The model. Its zeros are free to move; ``Masks.of(model).frozen(...)`` holds them.

    Examples
    --------
    >>> import tempfile, torch
    >>> from groupsparse import prune
    >>> first, second = torch.nn.Linear(40, 10), torch.nn.Linear(40, 10)
    >>> masks = prune.cut(first, sparsity=0.9)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     prune.save(first, f"{folder}/small.safetensors")
    ...     _ = prune.load(second, f"{folder}/small.safetensors")
    >>> torch.equal(first.weight, second.weight)
    True
    """
    state = _tensors(model)
    with _Reader(path) as reader:
        reader.check(state)
        for name, tensor in state.items():
            if tensor.is_meta:
                raise InvalidInput(f"{name} is on the meta device; call model.to_empty() first")
        for name, tensor in state.items():
            scatter_(tensor, reader.dense(name).to(tensor.device))
    return model


def to_dense(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> dict[str, Tensor]:
    """The file's tensors as an ordinary state dict, zeros written out, for other tools.

    Parameters
    ----------
    path : str or path
        A file that `save` wrote.
    out : str or path, optional
        Where to write them as an ordinary safetensors file as well.

    Returns
    -------
    dict of str to torch.Tensor
        What ``model.load_state_dict`` takes.

    Examples
    --------
    >>> import tempfile, torch
    >>> from groupsparse import prune
    >>> model = torch.nn.Linear(40, 10)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     prune.save(model, f"{folder}/small.safetensors")
    ...     sorted(prune.to_dense(f"{folder}/small.safetensors"))
    ['bias', 'weight']
    """
    with _Reader(path) as reader:
        dense = {name: reader.dense(name) for name in reader.index.tensors}
        aliases = reader.index.aliases
    if out is not None:
        # Tied tensors share memory, which safetensors refuses to write: copies go into the file.
        copies = {alias: dense[first].clone() for alias, first in aliases.items()}
        write_atomically(dense | copies, out, {"kind": "dense"})
    dense |= {alias: dense[first] for alias, first in aliases.items()}
    return dense


def pack(tensor: Tensor) -> tuple[PackedMask, Tensor] | None:
    """Mask and surviving values; None where storing the tensor as it is takes no more room."""
    pattern = BIT_PATTERN.get(tensor.itemsize)
    if pattern is None or not tensor.is_floating_point():
        return None
    flat = tensor.contiguous().view(-1)
    kept = flat.view(pattern) != 0
    if packed_bytes(tensor.numel(), int(kept.count_nonzero()), tensor.itemsize) >= tensor.nbytes:
        return None
    return PackedMask.pack(kept.view(tensor.shape)), _selected(flat, kept, pattern)


def _selected(flat: Tensor, kept: Tensor, pattern: torch.dtype) -> Tensor:
    """``flat[kept]``; on a CPU by way of NumPy, which needs no list of indices for it."""
    if flat.device.type != "cpu":
        return flat[kept]
    return torch.from_numpy(flat.view(pattern).numpy()[kept.numpy()]).view(flat.dtype)


def packed_bytes(entries: int, survivors: int, itemsize: int) -> int:
    """Bytes of a tensor stored as mask and values."""
    return -(-entries // 8) + survivors * itemsize


@dataclass(frozen=True)
class _Index:
    """What the metadata says beyond the stored tensors: what each was, and which are tied."""

    tensors: dict[str, dict[str, Any]]
    aliases: dict[str, str]
    memory: set[int] = field(default_factory=set)

    def add(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Note one tensor and return what to store of it."""
        packed = pack(tensor)
        self.tensors[name] = {
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "packed": packed is not None,
        }
        if packed is None:
            return {name: self._alone(tensor.cpu().contiguous())}
        return {f"{name}:bits": packed[0].bits.cpu(), f"{name}:values": packed[1].cpu()}

    def _alone(self, tensor: Tensor) -> Tensor:
        """The tensor; a copy where it overlaps another, which safetensors refuses to write."""
        place = tensor.untyped_storage().data_ptr()
        if place in self.memory:
            return tensor.clone()
        self.memory.add(place)
        return tensor

    def as_metadata(self) -> dict[str, str]:
        return {
            "kind": _KIND,
            "tensors": json.dumps(self.tensors),
            "aliases": json.dumps(self.aliases),
        }


def _memory(name: str, tensor: Tensor) -> object:
    """A key that two names share if they are tied to the same memory."""
    if is_sharded(tensor) or tensor.numel() == 0:
        return name
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class _Reader:
    """One open file; tensors are read when asked for, one at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        metadata = read_metadata(path)
        self.path = os.fspath(path)
        if metadata.get("kind") != _KIND:
            raise InvalidInput(f"{self.path} holds {metadata.get('kind')}; expected a saved model")
        self.index = _Index(json.loads(metadata["tensors"]), json.loads(metadata["aliases"]))
        self._file: Any = safe_open(path, framework="pt")

    def __enter__(self) -> _Reader:
        self._file.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._file.__exit__(*details)

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise if the file is for another model, or damaged."""
        known = {*self.index.tensors, *self.index.aliases}
        missing, surplus = sorted(known - state.keys()), sorted(state.keys() - known)
        if missing or surplus:
            raise InvalidInput(
                f"{self.path} is for another model: the model lacks {missing[:3]}, "
                f"the file lacks {surplus[:3]}"
            )
        for name, tensor in state.items():
            entry = self.index.tensors[self.index.aliases.get(name, name)]
            in_file = entry["dtype"], tuple(entry["shape"])
            in_model = str(tensor.dtype), tuple(tensor.shape)
            if in_file != in_model:
                raise InvalidInput(
                    f"{self.path} is for another model: {name} is {in_file[0]} {in_file[1]} in "
                    f"the file, {in_model[0]} {in_model[1]} in the model"
                )
        for name, entry in self.index.tensors.items():
            if entry["packed"]:
                self._kept(name)

    def _kept(self, name: str) -> Tensor:
        """Where a packed tensor has values; an error unless there are as many as that."""
        shape = tuple(self.index.tensors[name]["shape"])
        kept = PackedMask(self._file.get_tensor(f"{name}:bits"), shape).unpack()
        if self._file.get_slice(f"{name}:values").get_shape() != [int(kept.count_nonzero())]:
            raise InvalidInput(f"{self.path} is damaged: mask and values of {name} do not agree")
        return kept

    def dense(self, name: str) -> Tensor:
        """One tensor, its zeros written out."""
        name = self.index.aliases.get(name, name)
        if not self.index.tensors[name]["packed"]:
            whole: Tensor = self._file.get_tensor(name)
            return whole
        kept, values = self._kept(name), self._file.get_tensor(f"{name}:values")
        dense = torch.zeros(kept.shape, dtype=values.dtype, device="cpu")
        pattern = BIT_PATTERN[values.itemsize]
        dense.view(pattern).numpy()[kept.numpy()] = values.view(pattern).numpy()
        return dense


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the bare model under clean names."""
    state: dict[str, Tensor] = {}
    for name, value in bare(model).state_dict().items():
        if not isinstance(value, Tensor):
            raise InvalidInput(
                f"{name} is a {type(value).__name__}; only tensors can be written without pickle"
            )
        state[clean_name(name)] = value
    return state
