"""A .npy file: one array, which is mapped where its dtype and order allow it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .atomic import replacing
from .stored import NAMES, Change, Stored


class ArrayFile:
    """See :class:`groupsparse.storage.Store`. Its only tensor has the name of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise InvalidInput(f"{path} is no array that can be read: {error}") from error
        if not isinstance(mapped, np.memmap):
            raise InvalidInput(f"{path} is no .npy file")
        self.offset = mapped.offset
        self.dtype, self.fortran = mapped.dtype, mapped.flags.fnc
        self.tensors = [Stored(path.stem, dtype_name(mapped.dtype), mapped.shape)]

    def read(self, tensor: Stored) -> NDArray[Any]:
        """The values, mapped: nothing is read before it is used."""
        return self._mapped(self.path, "c")

    def rewrite(self, out: Path, changes: Mapping[str, Change]) -> None:
        with replacing(out) as target:
            with self.path.open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 22)
            target.flush()
            for tensor in self.tensors:
                if tensor.name in changes:
                    # The change is made in the pages of the new file itself.
                    values = self._mapped(Path(target.name), "r+")
                    answer = changes[tensor.name](tensor, values)
                    if answer is not values:
                        values[...] = answer

    def _mapped(self, path: Path, mode: Any) -> NDArray[Any]:
        tensor = self.tensors[0]
        order: Any = "F" if self.fortran else "C"
        shape = tensor.shape
        return np.asarray(np.memmap(path, self.dtype, mode, self.offset, shape, order))


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a dtype as `Stored` has it."""
    return NAMES.get(dtype, str(dtype))
