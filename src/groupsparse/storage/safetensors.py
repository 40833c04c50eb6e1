"""safetensors files, read and rewritten tensor by tensor.

The format: eight bytes with the length of the header, the header (JSON: dtype, shape and offsets
of every tensor, and metadata), the bytes of the tensors. A rewrite keeps every dtype and shape, so
that header and offsets stay what they are, byte for byte, and only values change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .atomic import replacing
from .stored import Change, Stored, decoded, encoded

LONGEST_HEADER = 100_000_000  # the format's own limit
COPIED = 1 << 22  # bytes held while unchanged tensors are copied

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "C128": 128,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    tensor: Stored
    start: int
    stop: int


class SafetensorsFile:
    """See :class:`groupsparse.storage.Store`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.header = _header(file, path)
            available = file.seek(0, 2)
        try:
            content = json.loads(self.header[8:])
            metadata = content.pop("__metadata__", {})
            places = [_place(name, entry, len(self.header)) for name, entry in content.items()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{path} is no safetensors file: its header is damaged") from error
        self.metadata: dict[str, str] = metadata
        self.places = sorted(places, key=lambda place: (place.start, place.stop))
        self._place_of = {place.tensor.name: place for place in self.places}
        end = len(self.header)
        for place in self.places:
            bits = place.tensor.size * _BITS.get(place.tensor.dtype, 0)
            if place.start != end or bits not in (0, 8 * (place.stop - place.start)):
                raise InvalidInput(
                    f"{path} is damaged: {place.tensor.name} does not lie where its shape and "
                    "its neighbours say"
                )
            end = place.stop
        if end > available:
            raise InvalidInput(
                f"{path} is cut off: it has {available} bytes, and its header speaks of {end}"
            )

    @property
    def tensors(self) -> list[Stored]:
        return [place.tensor for place in self.places]

    def read(self, tensor: Stored) -> NDArray[Any]:
        return decoded(self.bytes_of(tensor), tensor)

    def bytes_of(self, tensor: Stored) -> NDArray[np.uint8]:
        """The bytes of a tensor of any dtype."""
        with self.path.open("rb") as file:
            return self._bytes(file, self._place_of[tensor.name])

    def rewrite(self, out: Path, changes: Mapping[str, Change]) -> None:
        with self.path.open("rb") as source, replacing(out) as target:
            self.rewrite_into(source, target, changes)

    def rewrite_into(
        self, source: BinaryIO, target: BinaryIO, changes: Mapping[str, Change]
    ) -> None:
        """The rewrite itself, between files that are open."""
        target.write(self.header)
        for place in self.places:
            change = changes.get(place.tensor.name)
            if change is None:
                _copy(source, target, place)
                continue
            values = change(place.tensor, decoded(self._bytes(source, place), place.tensor))
            target.write(encoded(values, place.tensor.dtype).data)

    def _bytes(self, file: BinaryIO, place: _Place) -> NDArray[np.uint8]:
        # Read, not mapped: mapped pages would count as memory that this process uses.
        raw = np.empty(place.stop - place.start, np.uint8)
        file.seek(place.start)
        if file.readinto(raw.data) != raw.size:  # type: ignore[attr-defined]
            raise InvalidInput(f"{self.path} became shorter while it was read")
        return raw


def _header(file: BinaryIO, path: Path) -> bytes:
    """The header with the eight bytes of its length, as they are in the file."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > LONGEST_HEADER:
        raise InvalidInput(f"{path} is no safetensors file: it does not start like one")
    header = file.read(length)
    if len(header) < length:
        raise InvalidInput(f"{path} is no safetensors file, or is cut off inside its header")
    return start + header


def _place(name: str, entry: dict[str, Any], offset: int) -> _Place:
    start, stop = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    if min(start, stop - start, math.prod(shape)) < 0:
        raise ValueError(name)
    return _Place(Stored(name, str(entry["dtype"]), shape), offset + start, offset + stop)


def _copy(source: BinaryIO, target: BinaryIO, place: _Place) -> None:
    source.seek(place.start)
    left = place.stop - place.start
    while left:
        piece = source.read(min(left, COPIED))
        if not piece:
            raise InvalidInput("the file became shorter while it was read")
        target.write(piece)
        left -= len(piece)
