"""Where the zeros of a model are, at one bit per entry, and how they stay zero in training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InvalidInput
from .files import FORMAT, read_metadata, write_atomically
from .freezing import Frozen
from .packing import Bundle, PackedMask
from .sharding import local
from .targets import DEFAULT_TARGETS, Pattern, named_parameters, select


class Masks(Mapping[str, Tensor]):
    """Masks of a model's parameters, by name; indexing gives a boolean tensor, True where kept.

    `cut` and the baselines return one. The parameters themselves are never copied, and nothing is
    added to the model: freezing puts hooks on the optimizer.

    Parameters
    ----------
    packed : mapping of names to boolean tensors or PackedMask
        One mask per parameter, True where an entry is kept.

    Examples
    --------
    >>> import torch
    >>> from groupsparse import prune
    >>> layer = torch.nn.Linear(8, 8)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    >>> masks = prune.cut(layer, sparsity=0.75)
    >>> with masks.frozen(layer, optimizer):
    ...     layer(torch.ones(2, 8)).sum().backward()
    ...     _ = optimizer.step()
    >>> int((layer.weight == 0).sum()), masks.sparsity
    (48, 0.75)
    """

    def __init__(self, packed: Mapping[str, Tensor | PackedMask]) -> None:
        self.packed = {
            name: mask if isinstance(mask, PackedMask) else PackedMask.pack(mask)
            for name, mask in packed.items()
        }
        self._frozen: list[Frozen] = []

    _bundle: Bundle  # what ``packed`` comes from, if it was not given

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> Masks:
        """Masks that are taken out of one tensor when somebody first looks at them."""
        masks = cls.__new__(cls)
        masks._bundle, masks._frozen = bundle, []
        return masks

    @cached_property
    def packed(self) -> dict[str, PackedMask]:
        """The masks as they are held, a bit per entry, by name."""
        return self._bundle.masks()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *,
        targets: Iterable[Pattern] | Pattern = DEFAULT_TARGETS,
        ignore: Iterable[Pattern] | Pattern = (),
    ) -> Masks:
        """The zeros that a model has now, for instance after a projection or `load`."""
        found = select(model, targets, ignore)
        return cls({t.name: PackedMask.pack(local(t.parameter) != 0) for t in found})

    def __getitem__(self, name: str) -> Tensor:
        return self.packed[name].unpack()

    def __iter__(self) -> Iterator[str]:
        return iter(self.packed)

    def __len__(self) -> int:
        return len(self.packed)

    def __repr__(self) -> str:
        return f"Masks({len(self)} parameters, {self.zeros} of {self.entries} entries zero)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        return self.packed.keys() == other.packed.keys() and all(
            mask.shape == other.packed[name].shape
            and torch.equal(mask.bits, other.packed[name].bits.to(mask.bits.device))
            for name, mask in self.packed.items()
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def entries(self) -> int:
        """How many entries the masks speak of (in this process, if the model is sharded)."""
        return sum(mask.numel for mask in self.packed.values())

    @property
    def zeros(self) -> int:
        """How many of them are zero."""
        return sum(mask.zeros for mask in self.packed.values())

    @property
    def sparsity(self) -> float:
        """The fraction that is zero."""
        return self.zeros / self.entries if self.entries else 0.0  # a process may hold nothing

    def apply_(self, model: nn.Module) -> None:
        """Set the masked entries of a model to zero."""
        for parameter, mask in self.pairs(model):
            mask.to(parameter.device).zero_(local(parameter))

    def mask_gradients_(self, model: nn.Module) -> None:
        """Set the gradients of masked entries to zero.

        The optimizer's hook does this before every step by itself; call it earlier where something
        else reads the gradients, such as clipping by their norm.
        """
        for parameter, mask in self.pairs(model):
            if parameter.grad is not None and not parameter.grad.is_sparse:
                mask.to(parameter.device).zero_(local(parameter.grad))

    def frozen(self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer]) -> Frozen:
        """Keep the zeros at zero while training, from now until the ``with`` block or `remove`.

        Before each optimizer step the gradients of masked entries become zero, after it the entries
        themselves; what the optimizer remembers of them (momentum, Adam's moments) is cleared once.

        Parameters
        ----------
        model : torch.nn.Module
            The model that the masks were made for, in the state in which it is trained.
        optimizer : Optimizer or several
            All optimizers that change masked parameters; they may hold others too.

        Returns
        -------
        Frozen
            A context manager; leaving it removes the hooks. ``masks.remove()`` does the same.
        """
        frozen = Frozen(optimizer, self.pairs(model))
        self.apply_(model)
        self._frozen = [f for f in self._frozen if f.active] + [frozen]
        return frozen

    def remove(self) -> None:
        """Take back every hook that `frozen` placed, and no other; the zeros stay as they are."""
        for frozen in self._frozen:
            frozen.remove()
        self._frozen.clear()

    def pairs(self, model: nn.Module) -> list[tuple[nn.Parameter, PackedMask]]:
        """The model's parameters with their masks, after `check`."""
        self.check(model)
        parameters = named_parameters(model)
        return [(parameters[name], mask) for name, mask in self.packed.items()]

    def check(self, model: nn.Module) -> None:
        """Raise if these are masks for another model."""
        parameters = named_parameters(model)
        for name, mask in self.packed.items():
            if name not in parameters:
                raise InvalidInput(
                    f"these masks are for another model: it has no parameter {name!r}"
                )
            shape = tuple(local(parameters[name]).shape)
            if shape != mask.shape:
                raise InvalidInput(
                    f"these masks are for another model: {name} has shape {shape}, its mask "
                    f"{mask.shape}"
                )
            if parameters[name].is_meta:
                raise InvalidInput(f"{name} is on the meta device; load the model's values first")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the masks to a safetensors file."""
        shapes = {name: mask.shape for name, mask in self.packed.items()}
        bits = {name: mask.bits.cpu() for name, mask in self.packed.items()}
        write_atomically(bits, path, {"kind": "masks", "shapes": json.dumps(shapes)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Masks:
        """Read what `save` wrote."""
        metadata = read_metadata(path)
        if metadata.get("kind") != "masks":
            raise InvalidInput(f"{os.fspath(path)} holds no masks (format {FORMAT}, kind 'masks')")
        shapes: dict[str, list[int]] = json.loads(metadata["shapes"])
        with safe_open(path, framework="pt") as file:
            return cls(
                {name: PackedMask(file.get_tensor(name), tuple(s)) for name, s in shapes.items()}
            )

    def __getstate__(self) -> dict[str, Any]:
        # Hooks belong to the optimizer they were placed on; a copy of the masks has none.
        return {"packed": self.packed, "_frozen": []}
