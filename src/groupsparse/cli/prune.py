"""``groupsparse prune``: single-shot GSP and cut on a checkpoint, without the model's code."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..storage import Store, open_store
from ..storage.sharded import ShardedFiles
from .console import messages, number, output, progress, shape_of, show_table
from .options import AxisOption, Hoyer, Ignore, Targets, axes_for, checked_out


class Scope(StrEnum):
    """Who competes, or shares a target."""

    model = "model"
    layer = "layer"


class Values(StrEnum):
    """What the entries that stay are worth."""

    projected = "projected"
    original = "original"


def prune(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A checkpoint.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write; may be IN.")],
    hoyer: Hoyer,
    sparsity: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Fraction of the entries to set to zero.")
    ],
    scope: Annotated[
        Scope, typer.Option(help="Whether all entries compete to stay, or those of each tensor.")
    ] = Scope.model,
    budget: Annotated[
        Scope, typer.Option(help="Whether all tensors share the Hoyer target, or each meets it.")
    ] = Scope.model,
    values: Annotated[
        Values, typer.Option(help="Whether what stays gets its projected value or keeps its own.")
    ] = Values.projected,
    targets: Targets = None,
    ignore: Ignore = None,
    axis: AxisOption = None,
    packed: Annotated[
        bool,
        typer.Option("--packed", help="Write zeros at one bit each, to be read by prune.load."),
    ] = False,
) -> None:
    """Project a checkpoint, then cut its smallest entries.

    This is single-shot GSP, without the code of the model. Reads .safetensors and sharded
    checkpoints (their index or folder), tensor by tensor. Exactly round(SPARSITY x entries) of the
    chosen entries are zero afterwards, or more if the projection alone makes more. Without
    finetuning expect a high sparsity to cost accuracy, and try --values original and --budget
    layer. With --hoyer 0 it is plain magnitude pruning.
    """
    from ..prune.stored import prune_checkpoint

    store = open_store(source)
    if store.path.suffix.lower() not in (".safetensors", ".json"):
        raise typer.BadParameter(f"IN is {source}; expected a safetensors checkpoint")
    if packed and store.path.suffix.lower() == ".json":
        raise typer.BadParameter("--packed writes one file; IN is a sharded checkpoint")
    out = checked_out(store, out)
    with progress("pruning", 1) as advance:
        rows = prune_checkpoint(
            store.path,
            out,
            hoyer=hoyer,
            sparsity=sparsity,
            scope=scope.value,
            budget=budget.value,
            values=values.value,
            targets=targets or (),
            ignore=ignore or (),
            axes=lambda tensor: axes_for(axis, tensor),
            packed=packed,
            advance=advance,
        )
    lines = [
        (
            row.tensor.name,
            shape_of(row.tensor.shape),
            f"{row.tensor.size:,}",
            f"{row.after.zeros:,}",
            f"{row.after.zeros / row.tensor.size:.2%}",
            number(row.before.hoyer),
            number(row.after.hoyer),
        )
        for row in rows
    ]
    entries, zeros = sum(row.tensor.size for row in rows), sum(row.after.zeros for row in rows)
    vectors = max(sum(row.after.vectors for row in rows), 1)
    averages = [
        sum(m.hoyer * m.vectors for m in measures if m.vectors) / vectors
        for measures in ([row.before for row in rows], [row.after for row in rows])
    ]
    total = (
        "total", "", f"{entries:,}", f"{zeros:,}", f"{zeros / entries:.2%}",
        *(number(average) for average in averages),
    )  # fmt: skip
    columns = ("tensor", "shape", "Entries", "Zeros", "Sparsity", "Hoyer before", "Hoyer after")
    show_table(columns, lines, total)
    written = open_store(out / store.path.name if out.is_dir() else out)
    output().print(f"wrote {out} ({_size(written)})", soft_wrap=True)
    dead = [row.tensor.name for row in rows if row.after.zeros == row.tensor.size]
    if dead:
        messages().print(
            f"warning: nothing is left of {', '.join(dead)}; use a lower sparsity or --scope layer"
        )


def _size(store: Store) -> str:
    files = list(store.shards.values()) if isinstance(store, ShardedFiles) else [store]
    size = sum(file.path.stat().st_size for file in files)
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
