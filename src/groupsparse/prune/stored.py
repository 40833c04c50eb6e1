"""Single-shot GSP and the exact cut on a checkpoint, without the code of its model.

Both are passes over the file, one tensor in memory at a time: the projection into a file beside the
result, the cut from there into the result.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import InvalidInput
from ..projection import project_each_
from ..storage import Store, Stored, open_store
from ..storage.choose import choose
from ..storage.measure import Measures, axes_of, measure
from ..storage.shared import Part, SharedProjection
from .checkpoints import save
from .ordering import Cutoff, Scores, common_dtype, first_true, kth_smallest

Axes = Callable[[Stored], tuple[int, ...]]


@dataclass(frozen=True)
class Pruned:
    """One tensor of the checkpoint before and after."""

    tensor: Stored
    before: Measures
    after: Measures


def prune_checkpoint(
    source: Path,
    out: Path,
    *,
    hoyer: float,
    sparsity: float,
    scope: str = "model",
    budget: str = "model",
    values: str = "projected",
    targets: Sequence[str] = (),
    ignore: Sequence[str] = (),
    axes: Axes | None = None,
    packed: bool = False,
    advance: Callable[[str], None] = lambda _: None,
) -> list[Pruned]:
    """Project a checkpoint's tensors, set the smallest of what is left to zero, write the result.

    ``hoyer`` is the target of all vectors together (``budget="model"``) or of each tensor
    ("layer"), ``sparsity`` the fraction of zeros of all chosen tensors together
    (``scope="model"``) or of each ("layer"). With ``values="original"`` the zeros are the same, and
    what survives keeps the value that it had. With ``packed`` the result is a file as
    ``prune.save`` writes it.
    """
    if not 0.0 <= sparsity <= 1.0:
        raise InvalidInput(f"sparsity is {sparsity}; expected a fraction of zeros in [0, 1]")
    for name, value in (("scope", scope), ("budget", budget)):
        if value not in ("model", "layer"):
            raise InvalidInput(f"{name} is {value!r}; expected 'model' or 'layer'")
    if values not in ("projected", "original"):
        raise InvalidInput(f"values is {values!r}; expected 'projected' or 'original'")
    store = open_store(source)
    along = axes or (lambda tensor: axes_of(len(tensor.shape)))
    chosen = choose(store.tensors, targets, ignore)
    before: dict[str, Measures] = {}
    beside = [_beside(out, part) for part in ("projected", "cut")]
    try:
        _project(store, beside[0], chosen, along, hoyer, budget, before, advance)
        after = _cut(open_store(beside[0]), beside[1] if packed else out, chosen, along, sparsity,
                     scope, store if values == "original" else None, advance)  # fmt: skip
        if packed:
            advance("packing")
            save(_Held(open_store(beside[1])), out)
    finally:
        for path in beside:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return [Pruned(t, before[t.name], after[t.name]) for t in chosen]


def _beside(out: Path, part: str) -> Path:
    """The name of a file, or of a folder for shards, that is ours alone."""
    folder = out.parent if out.name.endswith(".json") else out
    suffix = folder.suffix if folder.suffix == ".safetensors" else ""
    return folder.with_name(f".{folder.stem}.{os.getpid()}.{part}{suffix}")


def _project(
    store: Store,
    out: Path,
    chosen: Sequence[Stored],
    axes: Axes,
    hoyer: float,
    budget: str,
    before: dict[str, Measures],
    advance: Callable[[str], None],
) -> None:
    # Vectors of one entry have no Hoyer measure; such a tensor is cut, but not projected.
    usable = [t for t in chosen if t.size > _vectors(t, axes(t))]
    group = None
    if budget == "model" and usable:
        advance("solving")
        parts = {t.name: Part(t.name, axes(t), t.size, lambda t=t: store.read(t)) for t in usable}  # type: ignore[misc]
        group = SharedProjection(list(parts.values()), hoyer)

    def change(tensor: Stored, values: NDArray[Any]) -> NDArray[Any]:
        advance(f"projecting {tensor.name}")
        before[tensor.name] = measure(values, axes(tensor))
        if tensor not in usable:
            return values
        if group is not None:
            return group.project(parts[tensor.name], values)
        project_each_({tensor.name: values}, hoyer, axis=[axes(tensor)])
        return values

    store.rewrite(out, {t.name: change for t in chosen})


def _vectors(tensor: Stored, axes: tuple[int, ...]) -> int:
    return int(np.prod([size for i, size in enumerate(tensor.shape) if i not in axes], dtype=int))


def _cut(
    store: Store,
    out: Path,
    chosen: Sequence[Stored],
    axes: Axes,
    sparsity: float,
    scope: str,
    original: Store | None,
    advance: Callable[[str], None],
) -> dict[str, Measures]:
    dtype = common_dtype([torch.float64 if t.dtype == "F64" else torch.float32 for t in chosen])
    scores = [Scores(t.name, lambda t=t: _magnitudes(store.read(t))) for t in chosen]  # type: ignore[misc]
    sizes = [tensor.size for tensor in chosen]
    advance("comparing")
    if scope == "model":
        cutoff = kth_smallest(scores, round(sparsity * sum(sizes)), dtype)
        cutoffs = dict.fromkeys((t.name for t in chosen), cutoff)
    else:
        cutoffs = {
            score.name: kth_smallest([score], round(sparsity * size), dtype)
            for score, size in zip(scores, sizes, strict=True)
        }
    ties = {id(cutoff): cutoff.ties for cutoff in cutoffs.values()}
    after: dict[str, Measures] = {}

    def change(tensor: Stored, values: NDArray[Any]) -> NDArray[Any]:
        advance(f"cutting {tensor.name}")
        cutoff = cutoffs[tensor.name]
        gone, ties[id(cutoff)] = _gone(values, cutoff, ties[id(cutoff)])
        values[gone.numpy()] = 0.0
        if original is not None:
            zeros = values == 0.0
            del values  # so that two tensors are in memory, and not three
            values = original.read(tensor)
            values[zeros] = 0.0
        after[tensor.name] = measure(values, axes(tensor))
        return values

    store.rewrite(out, {t.name: change for t in chosen})
    return after


def _magnitudes(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.abs(values, out=values))


def _gone(values: NDArray[Any], cutoff: Cutoff, remaining: int) -> tuple[Tensor, int]:
    """Which entries go, and how many equal ones are left for the tensors after this one."""
    scores = torch.from_numpy(values).abs().to(cutoff.dtype)
    gone = scores < cutoff.value
    if remaining > 0:
        ties = scores == cutoff.value
        count = int(ties.count_nonzero())
        gone |= ties if count <= remaining else first_true(ties, remaining)
        remaining -= min(remaining, count)
    return gone, remaining


class _Held(nn.Module):
    """A checkpoint in the place of a model, for what wants a model's state."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def state_dict(self, *_: Any, **__: Any) -> Any:
        from safetensors import safe_open

        with safe_open(self._store.path, framework="pt") as file:
            return {tensor.name: file.get_tensor(tensor.name) for tensor in self._store.tensors}
