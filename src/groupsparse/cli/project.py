"""``groupsparse project``: every tensor of a file to a target, one tensor in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from ..projection import project_each_
from ..storage import Stored, open_store
from ..storage.choose import choose
from ..storage.measure import Measures, measure
from ..storage.shared import Part, SharedProjection
from ..storage.stored import rounded
from .console import number, output, progress, shape_of, show_table
from .options import AxisOption, Hoyer, Ignore, Targets, axes_for, checked_out


def project(
    source: Annotated[Path, typer.Argument(metavar="IN", help="What to project.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write; may be IN.")],
    hoyer: Hoyer,
    axis: AxisOption = None,
    targets: Targets = None,
    ignore: Ignore = None,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="All tensors together meet the target, under one multiplier that decides which "
            "of them become sparse; without it each one does.",
        ),
    ] = False,
) -> None:
    """Project the tensors of a file to a target.

    Reads and writes .npy, .npz, .safetensors and sharded Hugging Face checkpoints (their index or
    folder), tensor by tensor, and keeps dtypes and metadata. OUT is replaced at the very end.
    """
    store = open_store(source)
    out = checked_out(store, out)
    chosen = [t for t in choose(store.tensors, targets or (), ignore or ()) if _counts(t, axis)]
    if not chosen:
        raise ValueError(f"{source} holds only vectors of length 1, which have no Hoyer measure")
    changed: dict[str, tuple[Measures, Measures, str]] = {}
    with progress("projecting", sum(t.size for t in chosen)) as advance:
        group = None
        if shared:
            parts = {
                t.name: Part(t.name, axes_for(axis, t), t.size, lambda t=t: store.read(t))  # type: ignore[misc]
                for t in chosen
            }
            group = SharedProjection(list(parts.values()), hoyer)

        def change(tensor: Stored, values: NDArray[Any]) -> NDArray[Any]:
            advance(tensor.name)
            axes = axes_for(axis, tensor)
            before = measure(values, axes)
            if group is not None:
                status = str(group.status)
                group.project(parts[tensor.name], values)
            else:
                [done] = project_each_({tensor.name: values}, hoyer, axis=[axes])
                status = str(done.status)
            values = rounded(values, tensor.dtype)
            changed[tensor.name] = before, measure(values, axes), status.partition(":")[0]
            advance(tensor.name, tensor.size)
            return values

        store.rewrite(out, {t.name: change for t in chosen})
    _report(chosen, changed)
    others = len(store.tensors) - len(chosen)
    note = f"; {others} other tensors are unchanged" if others else ""
    if group is not None:
        note = f"; one multiplier, {group.multiplier:.6g}{note}"
    output().print(f"wrote {out}{note}", soft_wrap=True)


def _counts(tensor: Stored, axis: str | None) -> bool:
    """Whether it has vectors of two or more entries."""
    length = 1
    for along in axes_for(axis, tensor):
        length *= tensor.shape[along]
    return length > 1


def _report(chosen: list[Stored], changed: dict[str, tuple[Measures, Measures, str]]) -> None:
    rows = []
    for tensor in chosen:
        before, after, status = changed[tensor.name]
        rows.append(
            (
                tensor.name,
                shape_of(tensor.shape),
                number(before.hoyer),
                number(after.hoyer),
                number(after.zeros / tensor.size, ".2%"),
                status,
            )
        )
    after_all = [after for _, after, _ in changed.values()]
    vectors = sum(m.vectors for m in after_all)
    size = sum(tensor.size for tensor in chosen)
    total = (
        "total",
        "",
        number(sum(before.hoyer * before.vectors for before, _, _ in changed.values()) / vectors),
        number(sum(m.hoyer * m.vectors for m in after_all) / vectors),
        number(sum(m.zeros for m in after_all) / size, ".2%"),
        "",
    )
    columns = ("tensor", "shape", "Hoyer before", "Hoyer after", "Zeros", "status")
    show_table(columns, rows, total if len(rows) > 1 else None)
