"""``groupsparse inspect``: a table of the tensors of a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ..storage import Store, Stored, open_store
from ..storage.measure import Measures, measured
from .console import bar, number, progress, shape_of, show_table


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to look at.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show shape, zeros and Hoyer measure of tensors.

    The measure is the average over rows or filters (every axis but the first is one vector), as
    the other commands take them. Also reads the packed files of prune.save.
    """
    store = open_store(file)
    found: list[tuple[Stored, Measures]] = []
    with progress("reading", sum(t.size for t in store.tensors)) as advance:
        for tensor in store.tensors:
            advance(tensor.name)
            found.append((tensor, _measured(store, tensor)))
            advance(tensor.name, tensor.size)
    rows = [_row(tensor, measures) for tensor, measures in found]
    total = _total(found)
    if as_json:
        print(json.dumps({"file": str(store.path), "tensors": rows, "total": total}, indent=2))
        return
    columns = ("tensor", "dtype", "shape", "Parameters", "Zeros", "Sparsity", "Hoyer", "")
    lines = [_cells(row, row["dtype"], shape_of(row["shape"])) for row in rows]
    show_table(columns, lines, _cells(total, "", ""))


def _measured(store: Store, tensor: Stored) -> Measures:
    return measured(store.read(tensor), tensor) if tensor.countable else Measures(0, math.nan, 0)


def _row(tensor: Stored, measures: Measures) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "parameters": tensor.size,
        "zeros": measures.zeros if tensor.countable else None,
        "sparsity": measures.zeros / tensor.size if tensor.countable and tensor.size else None,
        "hoyer": measures.hoyer if math.isfinite(measures.hoyer) else None,
    }


def _total(found: list[tuple[Stored, Measures]]) -> dict[str, Any]:
    counted = [(tensor.size, measures) for tensor, measures in found if tensor.countable]
    entries, zeros = sum(size for size, _ in counted), sum(m.zeros for _, m in counted)
    usable = [m for _, m in counted if m.vectors]
    vectors = sum(m.vectors for m in usable)
    hoyer = sum(m.hoyer * m.vectors for m in usable) / vectors if vectors else math.nan
    return {
        "name": "total",
        "tensors": len(found),
        "parameters": sum(tensor.size for tensor, _ in found),
        "zeros": zeros,
        "sparsity": zeros / entries if entries else None,
        "hoyer": hoyer if math.isfinite(hoyer) else None,
    }


def _cells(row: dict[str, Any], dtype: str, shape: str) -> tuple[str, ...]:
    hoyer, sparsity = (math.nan if row[key] is None else row[key] for key in ("hoyer", "sparsity"))
    return (
        row["name"],
        dtype,
        shape,
        f"{row['parameters']:,}",
        "-" if row["zeros"] is None else f"{row['zeros']:,}",
        number(sparsity, ".2%"),
        number(hoyer),
        bar(hoyer),
    )
