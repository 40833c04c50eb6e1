"""Files that are either the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of ``path`` once all of it is on the disk."""
    with replacing_name(path) as beside, beside.open("w+b") as file:
        yield file


@contextmanager
def replacing_name(path: Path) -> Iterator[Path]:
    """`replacing` for what opens its files itself: where to write, instead of ``path``."""
    # A link is replaced itself: what it points to may belong to somebody else, as the files of a
    # download cache do.
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    beside = partial_name(path)
    try:
        try:
            yield beside
        except OSError as error:
            if error.filename == str(beside):  # nobody knows the file by that name
                error.filename = str(path)
            raise
        with beside.open("r+b") as file:
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, beside)
        beside.replace(path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def partial_name(final: Path) -> Path:
    """Where to write what is to become ``final``: the same file system, hidden, ours alone."""
    return final.with_name(f".{final.name}.{os.getpid()}.part")


def sync_folder(folder: Path) -> None:
    """Bring names to the disk, where the system lets a folder be opened."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
