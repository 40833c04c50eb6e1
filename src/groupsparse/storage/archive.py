"""A .npz file: a zip of arrays, read and rewritten member by member."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import InvalidInput
from .array import dtype_name
from .atomic import replacing
from .stored import Change, Stored


class Archive:
    """See :class:`groupsparse.storage.Store`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                found = [_described(archive, info) for info in archive.infolist()]
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise InvalidInput(f"{path} is no .npz file: {error}") from error
        self.tensors = [tensor for tensor in found if tensor is not None]

    def read(self, tensor: Stored) -> NDArray[Any]:
        with _damage_named(self.path), zipfile.ZipFile(self.path) as archive:
            return _values(archive, f"{tensor.name}.npy")

    def rewrite(self, out: Path, changes: Mapping[str, Change]) -> None:
        known = {f"{tensor.name}.npy": tensor for tensor in self.tensors}
        with (
            _damage_named(self.path),
            zipfile.ZipFile(self.path) as source,
            replacing(out) as target,
            zipfile.ZipFile(target, "w", allowZip64=True) as archive,
        ):
            for info in source.infolist():
                kept = zipfile.ZipInfo(info.filename, info.date_time)
                kept.compress_type, kept.external_attr = info.compress_type, info.external_attr
                tensor = known.get(info.filename)
                change = None if tensor is None else changes.get(tensor.name)
                with archive.open(kept, "w", force_zip64=True) as member:
                    if tensor is None or change is None:
                        with source.open(info) as unchanged:
                            shutil.copyfileobj(unchanged, member, 1 << 20)
                        continue
                    values = _values(source, info.filename)
                    dtype, fortran = values.dtype, values.flags.fnc
                    answer = np.asarray(change(tensor, values), dtype, "F" if fortran else "C")
                    npy.write_array(member, answer, allow_pickle=False)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from error


def _values(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as member:
        values: NDArray[Any] = npy.read_array(member, allow_pickle=False)
        return values


def _described(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Stored | None:
    """Name, dtype and shape of a member; None for what is no array."""
    if not info.filename.endswith(".npy"):
        return None
    with archive.open(info) as member:
        version = npy.read_magic(member)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(member)
    return Stored(info.filename.removesuffix(".npy"), dtype_name(dtype), shape)
