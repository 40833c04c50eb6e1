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
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import InvalidInput
from .files import read_metadata, write_atomically
from .packing import PackedMask
from .sharding import gather, is_sharded, scatter_
from .targets import bare, clean_name

_KIND = "model"
_BIT_PATTERN = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    layout = _Layout()
    stored: dict[str, Tensor] = {}
    writes = not any(map(is_sharded, state.values())) or dist.get_rank() == 0
    for name, tensor in state.items():
        first = layout.first_name(name, tensor)
        if first != name:
            layout.aliases[name] = first
            continue
        whole = gather(tensor)  # one tensor at a time, in every process
        if not writes:
            continue
        packed = pack(whole)
        if packed is None:
            stored[name] = whole.cpu().contiguous()
        else:
            mask, values = packed
            layout.shapes[name] = list(mask.shape)
            stored[f"{name}:bits"], stored[f"{name}:values"] = mask.bits.cpu(), values.cpu()
    if writes:
        write_atomically(stored, path, layout.as_metadata())


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
        dense = {name: reader.dense(name) for name in reader.names}
        # Tied tensors share memory, which safetensors refuses to write: once each is enough there.
        if out is not None:
            once = {name: t for name, t in dense.items() if name not in reader.layout.aliases}
            write_atomically(once, out, {"kind": "dense"})
    for alias, first in reader.layout.aliases.items():
        dense[alias] = dense[first]
    return dense


def pack(tensor: Tensor) -> tuple[PackedMask, Tensor] | None:
    """Mask and surviving values; None where storing the tensor as it is takes no more room."""
    pattern = _BIT_PATTERN.get(tensor.itemsize)
    if pattern is None or not tensor.is_floating_point():
        return None
    flat = tensor.contiguous().view(-1)
    kept = flat.view(pattern) != 0
    if packed_bytes(tensor.numel(), int(kept.sum()), tensor.itemsize) >= tensor.nbytes:
        return None
    return PackedMask.pack(kept.view(tensor.shape)), flat[kept]


def packed_bytes(entries: int, survivors: int, itemsize: int) -> int:
    """Bytes of a tensor stored as mask and values."""
    return -(-entries // 8) + survivors * itemsize


class _Layout:
    """What the file's metadata says beyond its tensors: shapes of packed ones, names of tied ones."""

    def __init__(self, metadata: Mapping[str, str] | None = None) -> None:
        given = metadata or {}
        self.shapes: dict[str, list[int]] = json.loads(given.get("shapes", "{}"))
        self.aliases: dict[str, str] = json.loads(given.get("aliases", "{}"))
        self._names: dict[tuple[Any, ...], str] = {}

    def first_name(self, name: str, tensor: Tensor) -> str:
        """The name under which the same memory was seen first."""
        if is_sharded(tensor) or tensor.numel() == 0:
            key: tuple[Any, ...] = (id(tensor), name if tensor.numel() == 0 else None)
        else:
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        return self._names.setdefault(key, name)

    def as_metadata(self) -> dict[str, str]:
        return {
            "kind": _KIND,
            "shapes": json.dumps(self.shapes),
            "aliases": json.dumps(self.aliases),
        }


class _Reader:
    """One open file; tensors are read when asked for, one at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        metadata = read_metadata(path)
        self.path = os.fspath(path)
        if metadata.get("kind") != _KIND:
            raise InvalidInput(f"{self.path} holds {metadata.get('kind')}; expected a saved model")
        self.layout = _Layout(metadata)
        self._file = safe_open(path, framework="pt")
        plain = [key for key in self._file.keys() if ":" not in key]  # noqa: SIM118 (no mapping)
        self.names = [*plain, *self.layout.shapes]

    def __enter__(self) -> _Reader:
        self._file.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._file.__exit__(*details)

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise if the file is for another model."""
        known = {*self.names, *self.layout.aliases}
        missing, surplus = sorted(known - state.keys()), sorted(state.keys() - known)
        if missing or surplus:
            raise InvalidInput(
                f"{self.path} is for another model: the model lacks {missing[:3]}, "
                f"the file lacks {surplus[:3]}"
            )
        for name, tensor in state.items():
            shape, dtype = self._describe(name)
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise InvalidInput(
                    f"{self.path} is for another model: {name} is {shape} {dtype} in the file, "
                    f"{tuple(tensor.shape)} {tensor.dtype} in the model"
                )

    def dense(self, name: str) -> Tensor:
        """One tensor, its zeros written out."""
        name = self.layout.aliases.get(name, name)
        shape = self.layout.shapes.get(name)
        if shape is None:
            return self._file.get_tensor(name)
        mask = PackedMask(self._file.get_tensor(f"{name}:bits"), tuple(shape))
        values = self._file.get_tensor(f"{name}:values")
        kept = mask.unpack()
        if int(kept.sum()) != values.numel():
            raise InvalidInput(f"{self.path} is damaged: mask and values of {name} do not agree")
        dense = torch.zeros(shape, dtype=values.dtype)
        dense[kept] = values
        return dense

    def _describe(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        name = self.layout.aliases.get(name, name)
        if name in self.layout.shapes:
            values = self._file.get_slice(f"{name}:values")
            return tuple(self.layout.shapes[name]), _TORCH_DTYPE[values.get_dtype()]
        found = self._file.get_slice(name)
        return tuple(found.get_shape()), _TORCH_DTYPE[found.get_dtype()]


# What safetensors calls the dtypes that models are made of.
_TORCH_DTYPE = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


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
