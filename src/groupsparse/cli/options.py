"""Options that several commands have, and what they mean."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidInput
from ..storage import Store
from ..storage.measure import axes_of
from ..storage.stored import Stored

Hoyer = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Target average Hoyer measure, 0 to 1.")
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--targets", "-t",
        help="A tensor, a module (everything inside it) or re:PATTERN. May be repeated.",
    ),
]  # fmt: skip
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", "-i", help="What to leave as it is, named like --targets."),
]
AxisOption = Annotated[
    str | None,
    typer.Option(
        "--axis",
        help="Along which axes the vectors lie: 0, -1, 1,2 or all. [default: all but the first]",
    ),
]


def axes_for(axis: str | None, tensor: Stored) -> tuple[int, ...]:
    """What --axis means for one tensor."""
    if axis is None:
        return axes_of(len(tensor.shape))
    if axis == "all":
        return tuple(range(len(tensor.shape)))
    try:
        listed = [int(part) for part in axis.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{axis!r} is no axis; expected 0, -1, 1,2 or all") from None
    try:
        return axes_of(len(tensor.shape), listed)
    except InvalidInput:
        raise InvalidInput(
            f"--axis {axis} does not fit {tensor.name}, which has {len(tensor.shape)} axes"
        ) from None


def checked_out(store: Store, out: Path) -> Path:
    """Where to write: OUT itself, or the file of the same name in the folder OUT."""
    kind = store.path.suffix.lower()
    if kind == ".json":
        if out.suffix.lower() in (".npy", ".npz", ".safetensors"):
            raise typer.BadParameter(f"OUT is {out}; a sharded checkpoint goes into a folder")
        if out.is_file() and not out.name.endswith(".safetensors.index.json"):
            raise typer.BadParameter(f"OUT is {out}, which is a file; expected a folder")
        _check_writable(out if out.is_dir() else out.parent)
        return out
    if out.is_dir():
        out = out / store.path.name
    elif out.suffix.lower() != kind:
        raise typer.BadParameter(f"OUT is {out}; expected a name that ends in {kind}, like IN")
    check_folder(out)
    return out


def check_folder(out: Path) -> None:
    """Refuse a file that could not be written: now, and not when the work is done."""
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.parent} to write {out.name} into")
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder; expected the name of a file")
    _check_writable(out.parent)


def _check_writable(folder: Path) -> None:
    if folder.exists() and not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "this folder may not be written into", folder)
