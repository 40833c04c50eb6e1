"""Data for a factorisation, from whatever file it is in: samples as rows."""

from __future__ import annotations

import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, missing_extra

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".webp", ".gif")
MAPPED = 1 << 30  # bytes from which a .npy file is read block by block in every iteration


class Data(NamedTuple):
    """Samples as rows, and the height and width of one where they are images."""

    samples: Any
    shape: tuple[int, int] | None


def load(path: Path, key: str | None, columns: bool) -> Data:
    """Read the data; with ``columns`` the samples are the columns of the file."""
    if not path.exists():
        raise InvalidInput(f"there is no file {path}")
    if path.is_dir():
        if columns:
            raise InvalidInput("--columns is for matrices; in a folder every image is a sample")
        return _images(path)
    readers: dict[str, Callable[[Path, str | None], Any]] = {
        ".npy": _array,
        ".npz": _member,
        ".mat": _matlab,
    } | dict.fromkeys((".csv", ".txt", ".tsv"), _text)
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(
            f"{path} is of a kind that is not known; expected .npy, .npz, .mat, .csv, or a folder "
            "of images"
        )
    try:
        found = reader(path, key)
    except InvalidInput:
        raise
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text in UTF-8") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(f"{path} is no {path.suffix} file that can be read: {error}") from error
    if found.ndim not in (2, 3) or 0 in found.shape:
        raise InvalidInput(
            f"{path} holds an array of shape {found.shape}; expected a matrix, or a stack of images"
        )
    _refuse_entries(found, path)
    if columns:
        found = np.moveaxis(found, -1, 0) if found.ndim == 3 else found.T
    if found.ndim == 3:
        return Data(found.reshape(len(found), -1), (int(found.shape[1]), int(found.shape[2])))
    return Data(found, None)


def _refuse_entries(found: Any, path: Path) -> None:
    """Name the first entry that cannot be factorised; what is mapped is read when needed."""
    if isinstance(found, np.memmap):
        return
    stored = None if isinstance(found, np.ndarray) else found.tocoo()
    values = found if stored is None else stored.data
    wrong = ~np.isfinite(values)
    expected = "finite numbers"
    if not wrong.any():
        wrong, expected = values < 0, "no negative numbers"
    if not wrong.any():
        return
    first = int(np.argmax(wrong))
    at = (
        np.unravel_index(first, found.shape)
        if stored is None
        else (i[first] for i in stored.coords)
    )
    where = tuple(int(i) for i in at)
    raise InvalidInput(f"{path}: the entry at {where} is {values.flat[first]}; expected {expected}")


def shape_for(given: str | None, known: tuple[int, int] | None, features: int) -> tuple[int, int]:
    """Height and width of a part's picture: as asked for, as the images, square, or one line."""
    if given is not None:
        try:
            height, width = (int(part) for part in given.lower().split("x"))
        except ValueError:
            raise InvalidInput(f"--shape is {given!r}; expected HEIGHTxWIDTH") from None
        if height * width != features or height < 1:
            raise InvalidInput(
                f"--shape is {given}, {height * width} entries; samples have {features}"
            )
        return height, width
    if known is not None:
        return known
    side = math.isqrt(features)
    return (side, side) if side * side == features else (1, features)


def _array(path: Path, key: str | None) -> Any:
    mode: Any = "r" if path.stat().st_size > MAPPED else None
    return _as_numbers(_loaded(path, np.ndarray, mode), path)


def _member(path: Path, key: str | None) -> Any:
    with _loaded(path, np.lib.npyio.NpzFile) as archive:
        if key is None and {"format", "shape", "data"} <= set(archive.files):
            from scipy.sparse import load_npz

            return load_npz(path).tocsr()  # what scipy.sparse.save_npz wrote
        return _as_numbers(archive[_chosen(archive.files, key, path)], path)


def _loaded(path: Path, kind: type, mode: Any = None) -> Any:
    """What NumPy finds in the file, if it is what the file's name promises."""
    found = np.load(path, mmap_mode=mode, allow_pickle=False)
    if not isinstance(found, kind):
        raise InvalidInput(f"{path} is no {path.suffix} file")
    return found


def _matlab(path: Path, key: str | None) -> Any:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found: Mapping[str, Any] = loadmat(path)
    except NotImplementedError:
        raise InvalidInput(
            f"{path} is a MATLAB 7.3 file; save it with '-v7' to have it read here"
        ) from None
    except (MatReadError, ValueError, TypeError, OSError) as error:
        raise InvalidInput(f"{path} is no .mat file that can be read: {error}") from error
    matrices = [name for name in found if not name.startswith("__")]
    values = found[_chosen(matrices, key, path, found)]
    return values if hasattr(values, "tocsr") else _as_numbers(values, path)


def _chosen(
    names: list[str], key: str | None, path: Path, found: Mapping[str, Any] | None = None
) -> str:
    """The array that is meant: the one that is named, or the only one."""
    if key is not None:
        if key not in names:
            raise InvalidInput(f"{path} holds no {key!r}; it has {', '.join(names)}")
        return key
    if found is not None:
        names = [name for name in names if getattr(found[name], "size", 0) > 1] or names
    if len(names) != 1:
        raise InvalidInput(f"{path} holds {', '.join(names) or 'nothing'}; choose one with --key")
    return names[0]


def _text(path: Path, key: str | None) -> Any:
    with path.open(encoding="utf-8-sig") as file:
        first = file.readline()
    separator = max(",;\t", key=first.count) if any(s in first for s in ",;\t") else None
    try:
        [float(part) for part in first.split(separator)]
        header = 0
    except ValueError:
        header = 1
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            found = np.loadtxt(
                path, delimiter=separator, skiprows=header, ndmin=2, encoding="utf-8-sig"
            )
    except ValueError as error:
        raise InvalidInput(f"{path}: {_where(error)}") from error
    if found.size == 0:
        raise InvalidInput(f"{path} holds no numbers")
    return found


def _where(error: ValueError) -> str:
    """What NumPy says about a cell that is no number, with rows counted from 1 as columns are."""
    cell = re.search(r"string '(.*)' to \w+ at row (\d+), column (\d+)", str(error))
    if cell is None:
        return str(error)
    place = f"row {int(cell[2]) + 1} of the data, column {cell[3]},"
    return f"{place} is {cell[1]!r}; expected a number" if cell[1] else f"{place} is empty"


def _as_numbers(values: Any, path: Path) -> NDArray[Any]:
    if values.dtype.kind not in "fiub":
        raise InvalidInput(f"{path} holds {values.dtype}; expected real numbers")
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return values  # type: ignore[no-any-return]
    return values if isinstance(values, np.memmap) else values.astype(np.float64)


def _images(folder: Path) -> Data:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise missing_extra("Pillow", "plot") from error

    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in IMAGES)
    if not files:
        raise InvalidInput(f"{folder} holds no images ({', '.join(IMAGES)})")
    rows: list[NDArray[np.float64]] = []
    for file in files:
        try:
            with Image.open(file) as image:
                rows.append(np.asarray(image.convert("L"), dtype=np.float64) / 255.0)
        except (UnidentifiedImageError, OSError) as error:
            raise InvalidInput(f"{file} is no image that can be read") from error
        if rows[-1].shape != rows[0].shape:
            sizes = ["x".join(map(str, row.shape)) for row in (rows[0], rows[-1])]
            raise InvalidInput(
                f"{file} has {sizes[1]} pixels, {files[0].name} {sizes[0]}; expected the same"
            )
    height, width = rows[0].shape
    return Data(np.stack(rows).reshape(len(rows), -1), (height, width))
