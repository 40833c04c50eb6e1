"""Sharded checkpoints as Hugging Face writes them: several safetensors files and an index.

The index names the file of every tensor, so it is what makes a set of files one checkpoint. A
rewrite never touches a file that an index speaks of: new shards get new names, the index is
replaced last, in one step, and what it no longer names is removed only then. Killed at any moment
there is the old checkpoint or the new one, and at worst a file that belongs to neither.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import InvalidInput
from .atomic import partial_name, replacing, sync_folder
from .safetensors import SafetensorsFile
from .stored import Change, Stored

INDEX = ".safetensors.index.json"


class ShardedFiles:
    """See :class:`groupsparse.storage.Store`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = _read_index(path)
        self.shards: dict[str, SafetensorsFile] = {}
        self._shard_of: dict[str, SafetensorsFile] = {}
        for name, file in self.index["weight_map"].items():
            if Path(file).name != file:
                raise InvalidInput(f"{path} names a shard outside its own folder: {file}")
            if file not in self.shards:
                if not (path.parent / file).is_file():
                    raise InvalidInput(f"{path} names the shard {file}, which is not there")
                self.shards[file] = SafetensorsFile(path.parent / file)
            self._shard_of[name] = self.shards[file]
        held = {tensor.name for tensor in self.tensors}
        if missing := sorted(self._shard_of.keys() - held):
            raise InvalidInput(f"{path} names the tensor {missing[0]}, which its shard lacks")

    @property
    def tensors(self) -> list[Stored]:
        return [tensor for shard in self.shards.values() for tensor in shard.tensors]

    def read(self, tensor: Stored) -> NDArray[Any]:
        return self._shard_of[tensor.name].read(tensor)

    def rewrite(self, out: Path, changes: Mapping[str, Change]) -> None:
        """``out`` is a folder, or the index in it."""
        index = out if out.name.endswith(INDEX) else out / self.path.name
        if index.parent.exists():
            self._into_folder(index, changes)
        else:
            self._as_folder(index, changes)

    def _as_folder(self, index: Path, changes: Mapping[str, Change]) -> None:
        """Into a folder that does not exist yet: it appears as a whole."""
        beside = partial_name(index.parent)
        beside.mkdir(parents=True)
        try:
            for name, shard in self.shards.items():
                shard.rewrite(beside / name, changes)
            self._write_index(beside / index.name, {name: name for name in self.shards})
            beside.rename(index.parent)
            sync_folder(index.parent.parent)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _into_folder(self, index: Path, changes: Mapping[str, Change]) -> None:
        folder = index.parent
        old = set(_read_index(index)["weight_map"].values()) if index.exists() else set()
        here, there = index.resolve(), self.path.resolve()
        if here.parent == there.parent and here != there:
            old -= set(self.shards)  # the checkpoint that is read shares the folder, and stays
        names = _free_names(folder, list(self.shards))
        written = False
        try:
            for name, shard in self.shards.items():
                shard.rewrite(folder / names[name], changes)
            self._write_index(index, names)
            written = True
        finally:
            # What the index does not name is not part of the checkpoint any more, or not yet.
            for name in old - set(names.values()) if written else names.values():
                if Path(name).name == name:
                    (folder / name).unlink(missing_ok=True)

    def _write_index(self, path: Path, names: Mapping[str, str]) -> None:
        where = {name: names[file] for name, file in self.index["weight_map"].items()}
        text = json.dumps(self.index | {"weight_map": where}, indent=2) + "\n"
        with replacing(path) as file:
            file.write(text.encode())


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        named = index["weight_map"].values()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is no checkpoint index: it has no weight_map") from error
    if not named or not all(isinstance(file, str) for file in named):
        raise InvalidInput(f"{path} is no checkpoint index: its weight_map names no files")
    return index


def _free_names(folder: Path, names: list[str]) -> dict[str, str]:
    """Names for new shards that nothing in the folder has: the old ones, or with -r1, -r2, …"""
    stems = [re.sub(r"(-r\d+)?\.safetensors$", "", name) for name in names]
    revision = 0
    while True:
        mark = f"-r{revision}" if revision else ""
        new = [f"{stem}{mark}.safetensors" for stem in stems]
        if not any(os.path.lexists(folder / name) for name in new):
            return dict(zip(names, new, strict=True))
        revision += 1
